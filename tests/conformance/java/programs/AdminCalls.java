import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Each method of Admin that clients of 3.9 have and brokers of pylog serve, with its errors. */
final class AdminCalls extends Calls {
  private final Admin admin;

  AdminCalls(String bootstrap, String name, Admin admin, Checks checks) {
    super(bootstrap, name, checks);
    this.admin = admin;
  }

  @Override
  void all() throws Exception {
    cluster();
    topics();
    configs();
    offsets();
    replicas();
    groups();
    transactions();
    deletion();
    checks.equal("metrics", true, () -> !admin.metrics().isEmpty());
  }

  private void cluster() throws Exception {
    var asked = new DescribeClusterOptions().includeAuthorizedOperations(true);
    var found = admin.describeCluster(asked);
    checks.equal("describeCluster", Set.of(1, 2, 3), () -> ids(found.nodes().get()));
    checks.equal("describeCluster: id", true, () -> !found.clusterId().get().isEmpty());
    checks.equal("describeCluster: controller", true, () -> found.nodes().get().contains(found.controller().get()));
    checks.equal("describeCluster: operations", true, () -> found.authorizedOperations().get().contains(AclOperation.ALTER));
    checks.equal("listClientMetricsResources", "[]", () -> admin.listClientMetricsResources().all().get().toString());
    checks.equal("describeFeatures", (short) 2, () ->
        admin.describeFeatures().featureMetadata().get().finalizedFeatures().get("transaction.version").maxVersionLevel());
  }

  private void topics() throws Exception {
    var made = new NewTopic(name, 3, (short) 3).configs(Map.of("retention.ms", "-1"));
    var created = admin.createTopics(List.of(made));
    checks.equal("createTopics", List.of(3, 3), () -> List.of(created.numPartitions(name).get(), created.replicationFactor(name).get()));
    checks.equal("createTopics: its config", "-1", () -> created.config(name).get().get("retention.ms").value());
    checks.fails("createTopics: again", "TopicExistsException", () -> admin.createTopics(List.of(made)).all().get());
    creationFails("InvalidReplicationFactorException", new NewTopic("x", 1, (short) 4));
    creationFails("InvalidPartitionsException", new NewTopic("x", 0, (short) 1));
    creationFails("InvalidTopicException", new NewTopic("x y", 1, (short) 1));
    creationFails("InvalidConfigurationException", new NewTopic("x", 1, (short) 1).configs(Map.of("retention.ms", "long")));
    creationFails("InvalidReplicaAssignmentException", new NewTopic("x", Map.of(0, List.of(1, 1))));
    checks.becomes("listTopics", true, () -> admin.listTopics().names().get().contains(name));
    checks.becomes("describeTopics", List.of(3, 3, 3), () -> described(name).partitions().stream().map(p -> p.isr().size()).toList());
    checks.fails("describeTopics: unknown", "UnknownTopicOrPartitionException", () -> described("unknown"));
    admin.createPartitions(Map.of(name, NewPartitions.increaseTo(4, List.of(List.of(3, 1, 2))))).all().get();
    checks.becomes("createPartitions", List.of(3, 1, 2), () -> replicasOf(name, 3));
    checks.fails("createPartitions: fewer", "InvalidPartitionsException", () ->
        admin.createPartitions(Map.of(name, NewPartitions.increaseTo(2))).all().get());
  }

  private void creationFails(String error, NewTopic topic) {
    checks.fails("createTopics: " + error, error, () -> admin.createTopics(List.of(topic)).all().get());
  }

  private void configs() throws Exception {
    var topic = new ConfigResource(ConfigResource.Type.TOPIC, name);
    var broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
    alter(topic, "cleanup.policy", "compact", AlterConfigOp.OpType.APPEND);
    checks.becomes("incrementalAlterConfigs: append", "delete,compact", () -> config(topic, "cleanup.policy").value());
    alter(topic, "cleanup.policy", "compact", AlterConfigOp.OpType.SUBTRACT);
    checks.becomes("incrementalAlterConfigs: subtract", "delete", () -> config(topic, "cleanup.policy").value());
    alter(topic, "max.message.bytes", "2000000", AlterConfigOp.OpType.SET);
    checks.becomes("describeConfigs", ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, () -> config(topic, "max.message.bytes").source());
    alter(topic, "max.message.bytes", "", AlterConfigOp.OpType.DELETE);
    checks.becomes("incrementalAlterConfigs: delete", true, () -> config(topic, "max.message.bytes").isDefault());
    checks.fails("incrementalAlterConfigs: bad", "InvalidConfigurationException", () ->
        alter(topic, "retention.ms", "long", AlterConfigOp.OpType.SET));
    alter(broker, "leader.replication.throttled.rate", "2", AlterConfigOp.OpType.SET);
    checks.becomes("incrementalAlterConfigs: broker", "2", () -> config(broker, "leader.replication.throttled.rate").value());
    alter(broker, "leader.replication.throttled.rate", "", AlterConfigOp.OpType.DELETE);
  }

  private Void alter(ConfigResource resource, String key, String value, AlterConfigOp.OpType type) throws Exception {
    var change = new AlterConfigOp(new ConfigEntry(key, value), type);
    return admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
  }

  private ConfigEntry config(ConfigResource resource, String key) throws Exception {
    return admin.describeConfigs(List.of(resource)).all().get().get(resource).get(key);
  }

  private void offsets() throws Exception {
    var partition = new TopicPartition(name, 0);
    try (var producer = new KafkaProducer<>(settings(Map.of()), new StringSerializer(), new StringSerializer())) {
      for (int n = 0; n < 10; n++) producer.send(new ProducerRecord<>(name, 0, 1000L + n, null, "v" + n));
      producer.flush();
      checks.equal("describeProducers", true, () -> !producers(partition).isEmpty());
    }
    checks.equal("listOffsets: earliest", 0L, () -> offset(partition, OffsetSpec.earliest()));
    checks.equal("listOffsets: latest", 10L, () -> offset(partition, OffsetSpec.latest()));
    checks.equal("listOffsets: time", 7L, () -> offset(partition, OffsetSpec.forTimestamp(1007)));
    checks.equal("listOffsets: late", -1L, () -> offset(partition, OffsetSpec.forTimestamp(2000)));
    checks.equal("listOffsets: newest", 9L, () -> offset(partition, OffsetSpec.maxTimestamp()));
    checks.equal("deleteRecords", 4L, () -> shortened(partition, 4));
    checks.equal("deleteRecords: earliest", 4L, () -> offset(partition, OffsetSpec.earliest()));
    checks.fails("deleteRecords: beyond", "OffsetOutOfRangeException", () -> shortened(partition, 99));
  }

  private Collection<ProducerState> producers(TopicPartition partition) throws Exception {
    return admin.describeProducers(List.of(partition)).all().get().get(partition).activeProducers();
  }

  private long shortened(TopicPartition partition, long offset) throws Exception {
    var asked = Map.of(partition, RecordsToDelete.beforeOffset(offset));
    return admin.deleteRecords(asked).lowWatermarks().get(partition).get().lowWatermark();
  }

  private long offset(TopicPartition partition, OffsetSpec spec) throws Exception {
    return admin.listOffsets(Map.of(partition, spec)).all().get().get(partition).offset();
  }

  private void replicas() throws Exception {
    String moved = name + "-moved";
    var partition = new TopicPartition(moved, 0);
    admin.createTopics(List.of(new NewTopic(moved, Map.of(0, List.of(1, 2))))).all().get();
    checks.becomes("describeLogDirs", Set.of(1, 2), () -> admin.describeLogDirs(List.of(1, 2, 3)).allDescriptions().get()
        .entrySet().stream().filter(broker -> broker.getValue().values().stream()
            .anyMatch(dir -> dir.replicaInfos().containsKey(partition))).map(Map.Entry::getKey).collect(Collectors.toSet()));
    var replica = new TopicPartitionReplica(moved, 0, 1);
    checks.equal("describeReplicaLogDirs", true, () ->
        admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica).getCurrentReplicaLogDir().endsWith("broker-1"));
    checks.fails("alterPartitionReassignments: none to cancel", "NoReassignmentInProgressException", () ->
        admin.alterPartitionReassignments(Map.of(partition, Optional.empty())).all().get());
    checks.fails("alterPartitionReassignments: unknown broker", "InvalidReplicaAssignmentException", () -> reassign(partition, List.of(9)));
    reassign(partition, List.of(3, 2));
    checks.becomes("alterPartitionReassignments", List.of(3, 2), () -> replicasOf(moved, 0));
    checks.becomes("listPartitionReassignments", Map.of(), () -> admin.listPartitionReassignments(Set.of(partition)).reassignments().get());
    checks.becomes("alterPartitionReassignments: in sync", Set.of(2, 3), () -> ids(described(moved).partitions().get(0).isr()));
    admin.electLeaders(ElectionType.PREFERRED, null).all().get();
    checks.becomes("electLeaders", 3, () -> described(moved).partitions().get(0).leader().id());
    checks.fails("electLeaders: unknown", "UnknownTopicOrPartitionException", () ->
        admin.electLeaders(ElectionType.PREFERRED, Set.of(new TopicPartition("unknown", 0))).all().get());
  }

  private Void reassign(TopicPartition partition, List<Integer> replicas) throws Exception {
    return admin.alterPartitionReassignments(Map.of(partition, Optional.of(new NewPartitionReassignment(replicas)))).all().get();
  }

  private void groups() throws Exception {
    String group = name + "-group";
    var partition = new TopicPartition(name, 0);
    var commit = Map.of(partition, new OffsetAndMetadata(5, "five"));
    Map<String, Object> member = settings(Map.of("group.id", group, "group.instance.id", "one", "group.protocol", "classic"));
    try (var consumer = new KafkaConsumer<>(member, new StringDeserializer(), new StringDeserializer())) {
      consumer.subscribe(List.of(name));
      while (consumer.assignment().size() < 4) consumer.poll(java.time.Duration.ofMillis(100));
      consumer.commitSync(commit);
      checks.equal("listConsumerGroups", true, () -> admin.listConsumerGroups().all().get().stream().anyMatch(g -> g.groupId().equals(group)));
      var described = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
      checks.equal("describeConsumerGroups", List.of("Optional[one]", 4, "range"), () -> {
        var only = described.members().iterator().next();
        return List.of(only.groupInstanceId().toString(), only.assignment().topicPartitions().size(), described.partitionAssignor());
      });
      checks.equal("listConsumerGroupOffsets", commit, () -> committed(group));
      checks.fails("alterConsumerGroupOffsets: in use", "UnknownMemberIdException", () -> admin.alterConsumerGroupOffsets(group, commit).all().get());
      checks.fails("deleteConsumerGroupOffsets: in use", "GroupSubscribedToTopicException", () ->
          admin.deleteConsumerGroupOffsets(group, Set.of(partition)).all().get());
      checks.fails("deleteConsumerGroups: in use", "GroupNotEmptyException", () -> admin.deleteConsumerGroups(List.of(group)).all().get());
      admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions()).all().get();
      checks.equal("removeMembersFromConsumerGroup", 0, () ->
          admin.describeConsumerGroups(List.of(group)).all().get().get(group).members().size());
      consumer.unsubscribe();
    }
    admin.alterConsumerGroupOffsets(group, Map.of(partition, new OffsetAndMetadata(6))).all().get();
    checks.equal("alterConsumerGroupOffsets", 6L, () -> committed(group).get(partition).offset());
    admin.deleteConsumerGroupOffsets(group, Set.of(partition)).all().get();
    checks.equal("deleteConsumerGroupOffsets", Map.of(), () -> committed(group));
    admin.alterConsumerGroupOffsets(group, commit).all().get();
    admin.deleteConsumerGroups(List.of(group)).all().get();
    checks.equal("deleteConsumerGroups", false, () -> admin.listConsumerGroups().all().get().stream().anyMatch(g -> g.groupId().equals(group)));
    checks.fails("deleteConsumerGroups: unknown", "GroupIdNotFoundException", () -> admin.deleteConsumerGroups(List.of(group)).all().get());
  }

  private Map<TopicPartition, OffsetAndMetadata> committed(String group) throws Exception {
    return admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
  }

  private void transactions() throws Exception {
    var partition = new TopicPartition(name, 1);
    try (var producer = begun(name + "-a")) {
      checks.equal("listTransactions", true, () -> admin.listTransactions().all().get().stream().anyMatch(t -> t.transactionalId().equals(name + "-a")));
      checks.equal("describeTransactions", Set.of(partition), () ->
          admin.describeTransactions(List.of(name + "-a")).description(name + "-a").get().topicPartitions());
      var open = producers(partition).stream().filter(p -> p.currentTransactionStartOffset().isPresent()).findFirst().orElseThrow();
      var spec = new AbortTransactionSpec(partition, open.producerId(), (short) open.producerEpoch(), open.coordinatorEpoch().orElse(0));
      admin.abortTransaction(spec).all().get();
      checks.becomes("abortTransaction", true, () -> stable(partition) == offset(partition, OffsetSpec.latest()));
    }
    try (var producer = begun(name + "-b")) {
      admin.fenceProducers(List.of(name + "-b")).all().get();
      checks.fails("fenceProducers", "ProducerFencedException", () -> {
        try {
          producer.commitTransaction();
        } catch (org.apache.kafka.common.errors.InvalidProducerEpochException same) {
          throw new org.apache.kafka.common.errors.ProducerFencedException(same.getMessage());
        }
        return "committed";
      });
    }
    checks.fails("describeTransactions: unknown", "TransactionalIdNotFoundException", () ->
        admin.describeTransactions(List.of("unknown")).all().get());
  }

  /** A producer with a record in an open transaction. */
  KafkaProducer<String, String> begun(String id) throws Exception {
    var settings = settings(Map.of("transactional.id", id));
    var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    producer.initTransactions();
    producer.beginTransaction();
    producer.send(new ProducerRecord<>(name, 1, null, "open")).get();
    return producer;
  }

  private long stable(TopicPartition partition) throws Exception {
    var committed = new ListOffsetsOptions(IsolationLevel.READ_COMMITTED);
    return admin.listOffsets(Map.of(partition, OffsetSpec.latest()), committed).all().get().get(partition).offset();
  }

  private void deletion() throws Exception {
    String gone = name + "-moved";
    admin.deleteTopics(List.of(gone)).all().get();
    checks.becomes("deleteTopics", false, () -> admin.listTopics().names().get().contains(gone));
    checks.fails("deleteTopics: unknown", "UnknownTopicOrPartitionException", () -> admin.deleteTopics(List.of("unknown")).all().get());
  }

  private org.apache.kafka.clients.admin.TopicDescription described(String topic) throws Exception {
    return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
  }

  private List<Integer> replicasOf(String topic, int partition) throws Exception {
    return described(topic).partitions().get(partition).replicas().stream().map(Node::id).toList();
  }

  private static Set<Integer> ids(Collection<Node> nodes) {
    return nodes.stream().map(Node::id).collect(Collectors.toCollection(TreeSet::new));
  }
}
