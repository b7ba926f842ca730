package catalog

import "time"

// Progress describes a growth for operators.
type Progress struct {
	To     int             `json:"to"`              // number of shards after the growth
	Split  int             `json:"split"`           // number of shards that have been split and whose parts have all begun
	Since  string          `json:"since,omitempty"` // when the growth began, RFC 3339; "" if unknown
	Shards []ShardProgress `json:"shards"`          // the shards from before the growth
}

// ShardProgress describes how far a shard is in a growth.
type ShardProgress struct {
	Shard int        `json:"shard"`
	State SplitState `json:"state"`
	Since string     `json:"since,omitempty"` // when the attempt to split the shard was committed, RFC 3339; "" if unknown
}

// SplitState is the state of a shard that is to be split.
type SplitState string

const (
	SplitWaits     SplitState = "waiting"   // no attempt is under way
	SplitCommitted SplitState = "committed" // the parts have groups, and none has begun
	SplitDone      SplitState = "split"     // some parts have begun
	SplitBegun     SplitState = "begun"     // all parts have begun
)

// Progress returns the progress of the keyspace's growth, or nil if the keyspace does not grow.
func (k *Keyspace) Progress() *Progress {
	if k.Growth == nil {
		return nil
	}
	p := &Progress{To: k.Growth.Shards, Since: shownTime(k.Growth.Since)}
	for shard, group := range k.Groups {
		a := k.Growth.Attempts[group]
		of := ShardProgress{Shard: shard, State: SplitCommitted, Since: shownTime(a.Since)}
		switch {
		case a.Number == 0:
			of.State = SplitWaits
		case len(a.Pending) == 0:
			of.State = SplitBegun
			p.Split++
		case len(a.Pending) < len(a.Children):
			of.State = SplitDone
		}
		p.Shards = append(p.Shards, of)
	}
	return p
}

func shownTime(unix int64) string {
	if unix == 0 {
		return ""
	}
	return time.Unix(unix, 0).UTC().Format(time.RFC3339)
}
