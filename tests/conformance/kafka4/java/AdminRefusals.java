import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.ListStreamsGroupOffsetsSpec;
import org.apache.kafka.clients.admin.RaftVoterEndpoint;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;

/** Methods of Admin whose APIs our brokers do not serve: the error of each, one a line, and whether it came soon. */
public class AdminRefusals {
    static final long SOON_MS = 10_000;

    public static void main(String[] arguments) throws Exception {
        var settings = Map.<String, Object>of("bootstrap.servers", arguments[0], "default.api.timeout.ms", 30_000);
        Uuid id = Uuid.randomUuid();
        var endpoints = Set.of(new RaftVoterEndpoint("CONTROLLER", "localhost", 1));
        var scram = new UserScramCredentialUpsertion("u", new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), "p");
        var acl = new AclBinding(new ResourcePattern(ResourceType.TOPIC, "t", PatternType.LITERAL),
            new AccessControlEntry("User:u", "*", AclOperation.READ, AclPermissionType.ALLOW));
        var quota = new ClientQuotaAlteration(new ClientQuotaEntity(Map.of(ClientQuotaEntity.USER, "u")),
            List.of(new ClientQuotaAlteration.Op("producer_byte_rate", 1.0)));
        var partition = new TopicPartition("t", 0);
        var upgrade = new FeatureUpdate((short) 25, FeatureUpdate.UpgradeType.UPGRADE);
        try (Admin admin = Admin.create(settings)) {
            admin.describeCluster().nodes().get(60, TimeUnit.SECONDS);
            say("describeMetadataQuorum", () -> admin.describeMetadataQuorum().quorumInfo());
            say("addRaftVoter", () -> admin.addRaftVoter(3, id, endpoints).all());
            say("removeRaftVoter", () -> admin.removeRaftVoter(3, id).all());
            say("unregisterBroker", () -> admin.unregisterBroker(99).all());
            say("unregisterController", () -> admin.unregisterController(99).all());
            say("updateFeatures", () -> admin.updateFeatures(Map.of("metadata.version", upgrade), new UpdateFeaturesOptions()).all());
            say("describeAcls", () -> admin.describeAcls(AclBindingFilter.ANY).values());
            say("createAcls", () -> admin.createAcls(List.of(acl)).all());
            say("deleteAcls", () -> admin.deleteAcls(List.of(acl.toFilter())).all());
            say("describeClientQuotas", () -> admin.describeClientQuotas(ClientQuotaFilter.all()).entities());
            say("alterClientQuotas", () -> admin.alterClientQuotas(List.of(quota)).all());
            say("describeUserScramCredentials", () -> admin.describeUserScramCredentials().all());
            say("alterUserScramCredentials", () -> admin.alterUserScramCredentials(List.of(scram)).all());
            say("createDelegationToken", () -> admin.createDelegationToken().delegationToken());
            say("renewDelegationToken", () -> admin.renewDelegationToken(new byte[1]).expiryTimestamp());
            say("expireDelegationToken", () -> admin.expireDelegationToken(new byte[1]).expiryTimestamp());
            say("describeDelegationToken", () -> admin.describeDelegationToken().delegationTokens());
            say("alterReplicaLogDirs", () -> admin.alterReplicaLogDirs(Map.of(new TopicPartitionReplica("t", 0, 1), "/d")).all());
            say("listStreamsGroupOffsets", () -> admin.listStreamsGroupOffsets(Map.of("g", new ListStreamsGroupOffsetsSpec())).all());
            say("alterStreamsGroupOffsets", () -> admin.alterStreamsGroupOffsets("g", Map.of(partition, new OffsetAndMetadata(0))).all());
            say("deleteStreamsGroupOffsets", () -> admin.deleteStreamsGroupOffsets("g", Set.of(partition)).all());
            say("deleteStreamsGroups", () -> admin.deleteStreamsGroups(List.of("g")).all());
            say("describeStreamsGroups", () -> admin.describeStreamsGroups(List.of("g")).all());
            say("clientInstanceId", () -> KafkaFuture.completedFuture(admin.clientInstanceId(java.time.Duration.ofSeconds(9))));
        }
    }

    private static void say(String name, Callable<KafkaFuture<?>> method) throws Exception {
        long begin = System.nanoTime();
        String said;
        try {
            method.call().get(60, TimeUnit.SECONDS);
            said = "none";
        } catch (ExecutionException error) {
            said = error.getCause().getClass().getSimpleName();
        } catch (RuntimeException error) {
            said = error.getClass().getSimpleName();
        }
        long took = (System.nanoTime() - begin) / 1_000_000;
        System.out.println(name + ": " + said + (took < SOON_MS ? "" : " after " + took + " ms"));
    }
}
