// Command kafka serves Kafka's protocol for tests that kill a broker. It keeps its data in a
// directory and syncs each write. It creates the topics likes and likes.dead.
//
// Usage: kafka PORT DIRECTORY PARTITIONS
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: kafka PORT DIRECTORY PARTITIONS")
		os.Exit(2)
	}
	port, err1 := strconv.ParseUint(os.Args[1], 10, 16)
	partitions, err2 := strconv.ParseUint(os.Args[3], 10, 16)
	err := errors.Join(err1, err2)
	if err == nil {
		_, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(int(port)), kfake.DataDir(os.Args[2]), kfake.SyncWrites(),
			kfake.SeedTopics(int32(partitions), "likes"), kfake.SeedTopics(1, "likes.dead"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	select {} // serve until the process is killed
}
