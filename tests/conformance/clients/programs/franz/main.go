// Arguments: bootstrap, topic, partitions, producers, seconds. Each producer begins a transaction as soon as one is committed.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func number(at int) int {
	found, err := strconv.Atoi(os.Args[at])
	if err != nil {
		panic(err)
	}
	return found
}

// once writes a record to each partition in one transaction.
func once(client *kgo.Client, topic string, partitions int) error {
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	var mutex sync.Mutex
	var failed error
	for partition := 0; partition < partitions; partition++ {
		record := &kgo.Record{Topic: topic, Partition: int32(partition), Value: []byte("x")}
		client.Produce(context.Background(), record, func(_ *kgo.Record, err error) {
			mutex.Lock()
			defer mutex.Unlock()
			if err != nil {
				failed = err
			}
		})
	}
	if err := client.Flush(context.Background()); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	return client.EndTransaction(context.Background(), kgo.TryCommit)
}

func main() {
	seeds, topic, partitions := strings.Split(os.Args[1], ","), os.Args[2], number(3)
	end := time.Now().Add(time.Duration(number(5)) * time.Second)
	var committed atomic.Int64
	var all sync.WaitGroup
	for producer := 0; producer < number(4); producer++ {
		all.Add(1)
		go func() {
			defer all.Done()
			client, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.ProducerLinger(0),
				kgo.TransactionalID(fmt.Sprintf("%s-%d", topic, producer)), kgo.RecordPartitioner(kgo.ManualPartitioner()))
			if err != nil {
				panic(err)
			}
			defer client.Close()
			for time.Now().Before(end) {
				if err := once(client, topic, partitions); err != nil {
					fmt.Println("failed", err)
					return
				}
				committed.Add(1)
			}
		}()
	}
	all.Wait()
	fmt.Println("committed", committed.Load(), committed.Load()*int64(partitions))
}
