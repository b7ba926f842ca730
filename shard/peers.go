package shard

// The methods of calls between nodes.
const (
	methodRead      = "read"      // parts of reads → rows
	methodPropose   = "propose"   // parts of writes for one group → the outcome of each
	methodRelay     = "relay"     // the same, to be handed to the node that leads the group
	methodRelayRead = "relayread" // a node and parts of reads for it → rows
	methodReport    = "report"    // nothing → the node's report of itself, as JSON
	methodDiskFull  = "diskfull"  // nothing → whether the node's disk is at its reserve
	methodSnapshot  = "snapshot"  // a shard and an index → a snapshot of that index or a later one, in pieces
)

const (
	// askInFlightMax lets one call travel while the other node still answers the previous one. Reads
	// that arrive meanwhile share the next call.
	askInFlightMax = 2
	// These bound the reads that wait for one peer. Even an idle peer answers only thousands of reads a
	// second, so it could not answer a longer queue before the deadlines.
	askQueueMax      = 16_384
	readsQueueBytes  = 16 << 20
	readsInCallMax   = 1024
	readsInCallBytes = 1 << 20
)
