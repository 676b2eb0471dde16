// Arguments: bootstrap, topic, partitions, producers, longest pause in ms, name, instance, file that names the instance
// that is to live. Each producer makes one transaction after the other until standard input ends. See transacting.py.
package main

import (
	"context"
	"fmt"
	"io"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const patience = 10 * time.Second

var isOver atomic.Bool

func number(at int) int {
	found, err := strconv.Atoi(os.Args[at])
	if err != nil {
		panic(err)
	}
	return found
}

func goesOn() bool {
	living, err := os.ReadFile(os.Args[8])
	return !isOver.Load() && err == nil && string(living) == os.Args[7]
}

// transact makes one transaction; it returns what became of it, and an error.
func transact(client *kgo.Client, name string, at int, count int) (string, error) {
	if err := client.BeginTransaction(); err != nil {
		return "aborted", err
	}
	fate, try := "commit", kgo.TryCommit
	if rand.Intn(4) == 0 {
		fate, try = "abort", kgo.TryAbort
	}
	limit, end := context.WithTimeout(context.Background(), patience)
	defer end()
	var mutex sync.Mutex
	var failed error
	for i := 0; i < count; i++ {
		value := fmt.Sprintf("%s %s %d %d %d %s", name, os.Args[7], at, i, count, fate)
		record := &kgo.Record{Topic: os.Args[2], Partition: int32(rand.Intn(number(3))), Value: []byte(value)}
		client.Produce(limit, record, func(_ *kgo.Record, err error) {
			mutex.Lock()
			defer mutex.Unlock()
			if err != nil {
				failed = err
			}
		})
	}
	err := client.Flush(limit)
	mutex.Lock()
	if err == nil {
		err = failed
	}
	mutex.Unlock()
	if err != nil {
		rest, end := context.WithTimeout(context.Background(), patience)
		defer end()
		if client.AbortBufferedRecords(rest) == nil {
			client.EndTransaction(rest, kgo.TryAbort)
		}
		return "aborted", err
	}
	rest, end := context.WithTimeout(context.Background(), 2*patience)
	defer end()
	err = client.EndTransaction(rest, try)
	if fate == "abort" {
		return "aborted", err
	}
	if err != nil {
		return "unknown", err
	}
	return "committed", nil
}

// work makes transactions with one client until it fails; it returns the number of the next.
func work(name string, at int) int {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(os.Args[1], ",")...), kgo.ProducerLinger(0),
		kgo.TransactionalID(name), kgo.TransactionTimeout(20*time.Second), kgo.RecordDeliveryTimeout(patience),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		panic(err)
	}
	defer client.Close()
	for goesOn() {
		count := 1 + rand.Intn(12)
		outcome, err := transact(client, name, at, count)
		fmt.Println(outcome, name, os.Args[7], at, count)
		at++
		if err != nil {
			fmt.Println("failed", strings.ReplaceAll(err.Error(), "\n", " "))
			return at
		}
		if pause := number(5); pause > 0 && rand.Intn(2) == 0 {
			time.Sleep(time.Duration(rand.Intn(pause)) * time.Millisecond)
		}
	}
	return at
}

func main() {
	var all sync.WaitGroup
	for producer := 0; producer < number(4); producer++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for at := 0; goesOn(); {
				at = work(fmt.Sprintf("%s-%d", os.Args[6], producer), at)
			}
		}()
	}
	io.Copy(io.Discard, os.Stdin)
	isOver.Store(true)
	all.Wait()
}
