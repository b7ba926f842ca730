package backup

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/column"
)

// KindCounters is the only kind of keyspaces that clients can create. The cluster creates the keyspaces of
// other kinds itself.
const KindCounters = "counters"

const (
	// KindNames is the kind of the keyspaces that give texts their numbers. Lists of keyspaces hide them.
	KindNames = "names"
	// IDsText is the value of IDs for texts.
	IDsText = "text"

	namesSuffix = "@ids"
	userNames   = "users" + namesSuffix // gives the numbers of users, and so of members of any column
)

// Names returns the keyspaces that give the texts in this one their numbers: those of its ids, and those of users. A backup
// may lack the latter.
func (k *Keyspace) Names() (own, users string) {
	switch {
	case k.Kind == KindNames || k.Kind == "board":
		return "", ""
	case k.IDs == "":
		return "", userNames
	case k.Kind == KindCounters:
		return k.Name + namesSuffix, userNames
	}
	return userNames, userNames
}

// Owner returns the keyspace by which it was chosen whether ids are texts: for a keyspace of names, the one that was created
// with it.
func (k *Keyspace) Owner() string {
	switch k.Kind {
	case KindNames:
		return strings.TrimSuffix(k.Name, namesSuffix)
	case KindCounters:
		return k.Name
	}
	return strings.TrimSuffix(userNames, namesSuffix)
}

// WithNames returns the keyspaces of a list, and those of kind names, which the list hides. numbers is as in
// Cluster.Groups.
func WithNames(list []client.Keyspace, numbers map[string]uint32) []client.Keyspace {
	all := slices.Clone(list)
	for _, group := range slices.Sorted(maps.Keys(numbers)) {
		name, hidden := strings.CutSuffix(group, namesSuffix+"/0")
		name += namesSuffix
		if hidden && !slices.ContainsFunc(all, func(k client.Keyspace) bool { return k.Name == name }) {
			all = append(all, client.Keyspace{Name: name, Kind: KindNames, Columns: []string{}, Shards: 1})
		}
	}
	return all
}

// modulusMax bounds the moduli of a manifest. It is far above the most shards of a keyspace.
const modulusMax = 1 << 16

// Keyspace describes a keyspace in a backup.
type Keyspace struct {
	Name    string   `json:"name"`
	Kind    string   `json:"kind"`
	Columns []string `json:"columns"`
	Shards  int      `json:"shards"`
	// Numbered lists the columns in the order of their numbers in the snapshots, with "" for a
	// dropped column. It is absent if no column was dropped; then Columns has this order. Older
	// programs, which lack this field, refuse a manifest that has it.
	Numbered []string `json:"numbered_columns,omitempty"`
	column.Settings[int64]
	// IDs is IDsText, or "" for numbers. Older programs, which lack this field, refuse a manifest that has
	// it.
	IDs string `json:"ids,omitempty"`
	// Sharding is "" for modulo. Older programs, which lack this field, refuse a manifest that has
	// it.
	Sharding string `json:"sharding,omitempty"`
	// CreatedShards is the number of shards at the creation; 0 unless the keyspace has grown. The keys in the
	// snapshots depend on it.
	CreatedShards int `json:"created_shards,omitempty"`
	// Files has one for each shard, in the order of shards. If the keyspace grew during the backup, it may have some shards
	// from before their split, and the parts of others. Each id is in one of them.
	Files []File `json:"groups"`
}

// settle completes the description of a keyspace from the moduli of its groups. If all shards had split, the backup is one
// of the grown keyspace.
func (k *Keyspace) settle() {
	slices.SortFunc(k.Files, func(a, b File) int { return cmp.Compare(a.Shard, b.Shard) })
	modulus := k.Files[0].Modulus
	if !slices.ContainsFunc(k.Files, func(g File) bool { return g.Modulus != modulus }) && modulus != k.Shards {
		k.Shards, k.CreatedShards = modulus, cmp.Or(k.CreatedShards, k.Shards)
	}
	for i := range k.Files {
		if g := &k.Files[i]; g.Modulus == k.Shards {
			g.Modulus = 0
		}
	}
}

// Mixed reports whether the backup has shards from before and after a growth.
func (k *Keyspace) Mixed() bool {
	return slices.ContainsFunc(k.Files, func(g File) bool { return g.Modulus != 0 })
}

// Parts returns the largest modulus of the groups. In a keyspace that is created with so many shards, each shard has its ids from
// one file.
func (k *Keyspace) Parts() int {
	most := k.Shards
	for _, g := range k.Files {
		most = max(most, g.Modulus)
	}
	return most
}

// covers reports whether each id is in exactly one group.
func (k *Keyspace) covers() bool {
	most := k.Parts()
	if k.Shards < 1 || most > modulusMax {
		return false
	}
	covered := make([]bool, most) // by remainder
	for _, g := range k.Files {
		modulus := cmp.Or(g.Modulus, k.Shards)
		if g.Shard < 0 || modulus < 1 || g.Shard >= modulus || most%modulus != 0 {
			return false
		}
		for s := g.Shard; s < most; s += modulus {
			if covered[s] {
				return false
			}
			covered[s] = true
		}
	}
	return !slices.Contains(covered, false)
}

// Divisor returns the number of ids of the whole keyspace that have the same key in the snapshots.
func (k *Keyspace) Divisor() int {
	if k.Sharding != "" {
		return 1
	}
	return cmp.Or(k.CreatedShards, k.Shards)
}

// SameShards reports whether each shard of the keyspace there has the ids and keys of a snapshot.
func (k *Keyspace) SameShards(there client.Keyspace) bool {
	if there.Shards != k.Shards || there.Sharding != k.Sharding || k.Mixed() {
		return false
	}
	return k.Sharding != "" || cmp.Or(there.CreatedShards, there.Shards) == k.Divisor()
}

// Shares reports whether an id may be both in a snapshot and in a shard of the keyspace there.
func (k *Keyspace) Shares(g File, there client.Keyspace, shard int) bool {
	a, b := there.Shards, cmp.Or(g.Modulus, k.Shards)
	for b > 0 {
		a, b = b, a%b
	}
	return there.Sharding != k.Sharding || shard%a == g.Shard%a // a is the greatest common divisor
}

// Merges reports whether a shard of the keyspace there would get the ids of several files.
func (k *Keyspace) Merges(there client.Keyspace) bool {
	for shard := range there.Shards {
		files := 0
		for _, g := range k.Files {
			if k.Shares(g, there, shard) {
				files++
			}
		}
		if files > 1 {
			return true
		}
	}
	return false
}

// InFiles returns the columns in the order of their numbers in the snapshots, with "" for a dropped column.
func (k *Keyspace) InFiles() []string {
	if k.Numbered != nil {
		return k.Numbered
	}
	return k.Columns
}

// SameNumbers reports whether each column of the snapshots has the same number in the cluster. It returns
// false if the snapshots have a dropped column.
func (k *Keyspace) SameNumbers(there []string) bool {
	columns := k.InFiles()
	return len(columns) <= len(there) && slices.Equal(columns, there[:len(columns)]) && !slices.Contains(columns, "")
}

// referringKinds lists the kinds whose keyspaces refer to others: rows of unread numbers have cursors
// to notices and firings of the board, and feeds have counts of posts. A backup copies the referring
// keyspaces before the others, and a restore restores them after the others. So the backup contains
// the target of each reference, even if clients write meanwhile. In the reverse order, a cursor could
// be beyond the last notice of the backup and so hide later notices. A feed could mark posts as seen
// that are missing in the backup.
var referringKinds = []string{"unread", "feed"}

// InOrder sorts keyspaces into the order in which a backup copies them. A restore uses the
// reverse order. Names come last: rows have numbers of names.
func InOrder[K any](keyspaces []K, kind func(K) string) {
	rank := func(k K) int { // 0 if k refers to others, or -1, or -2 for names
		if kind(k) == KindNames {
			return -2
		}
		return min(slices.Index(referringKinds, kind(k)), 0)
	}
	slices.SortStableFunc(keyspaces, func(a, b K) int { return cmp.Compare(rank(b), rank(a)) })
}
