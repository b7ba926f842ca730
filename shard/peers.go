package shard

// These are the methods of calls between nodes, with their requests → answers.
const (
	methodRead      = "read"      // parts of reads → rows
	methodPropose   = "propose"   // parts of writes for one group → the outcome of each
	methodRelay     = "relay"     // the same, but the called node relays the parts to the group's leader
	methodRelayRead = "relayread" // parts of reads → rows, but the called node relays the parts to the given node
	methodReport    = "report"    // a reportRequest → the node's report of itself, as JSON
	methodSnapshot  = "snapshot"  // a shard and a log index → a snapshot of that or a later index, in pieces
)

const (
	// askInFlightMax allows a second call while the other node still answers the first. Reads that
	// arrive during both share the next call.
	askInFlightMax = 2
	// These constants bound each of the two queues of reads for one peer. A peer answers thousands
	// of reads per second, so it could not answer a longer queue before the deadlines. One queue is
	// for reads that may need the disk. A scan uses that queue; it reads all shards of a peer at
	// once, up to 7 MB. While the queue is full, such reads try another node, pause, and try again.
	// All other reads use the second queue.
	askQueueMax      = 16_384
	readsQueueBytes  = 16 << 20
	readsInCallMax   = 1024
	readsInCallBytes = 1 << 20
)
