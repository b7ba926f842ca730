package shard

// The methods of calls between nodes.
const (
	methodRead      = "read"      // parts of reads → rows
	methodPropose   = "propose"   // parts of writes for one group → what became of each
	methodRelay     = "relay"     // the same, to be handed to the node that leads the group
	methodRelayRead = "relayread" // a node and parts of reads for it → rows
	methodReport    = "report"    // → what the node says of itself, as JSON
	methodDiskFull  = "diskfull"  // nothing → whether the node's disk is at its reserve
	methodSnapshot  = "snapshot"  // a shard and an index → a snapshot of then or later, in pieces
)

const (
	// askInFlightMax lets one question travel while the answer before it is
	// made; what comes meanwhile shares the next.
	askInFlightMax = 2
	// Bounds of what waits for one peer: an idle one answers thousands of times
	// a second, so this many waiting will not be answered in time.
	askQueueMax      = 16_384
	readsQueueBytes  = 16 << 20
	readsInCallMax   = 1024
	readsInCallBytes = 1 << 20
)
