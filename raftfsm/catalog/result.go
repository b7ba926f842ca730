package catalog

import "fmt"

// Result is the answer of Apply. If a field other than Keyspace, Source and User is set, the command
// changed nothing.
type Result struct {
	Keyspace Keyspace // after a command of a keyspace or its growth; Drop: before it
	Source   Source   // after the command of a source; DeleteSource: before it
	User     User     // after the command of a user; DeleteUser: before it
	Exists   bool     // Create, PutSource: the name is taken; commands with the version of a source: the source has another version; AddToken: the number is not the next number; PutUser: the rights differ from Was
	Missing  bool     // the keyspace, column, node, source, user or token does not exist
	Full     bool     // AddColumns: the keyspace would have more than engine.ColumnsMax columns
	Refused  string   // the reason why the command does not fit the catalog, for people; "" if it fits
	Bound    Bound    // Create, Grow, commands of sources and users: the bound that the command would exceed, with Refused set; "" for none
}

// Bound names a bound of a whole cluster.
type Bound string

// The bounds that Result.Bound names.
const (
	BoundKeyspaces  Bound = "keyspaces"  // KeyspacesMax
	BoundGroups     Bound = "groups"     // GroupsMax
	BoundSources    Bound = "sources"    // SourcesMax
	BoundPartitions Bound = "partitions" // PartitionsMax
	BoundUsers      Bound = "users"      // UsersMax
	BoundTokens     Bound = "tokens"     // UserTokensMax
)

// RefusedError is returned for a change that the cluster cannot make in its present state. Nothing was
// changed.
type RefusedError struct{ Reason string }

func refused(format string, args ...any) (Result, bool) {
	return Result{Refused: fmt.Sprintf(format, args...)}, false
}

func pastBound(bound Bound, format string, args ...any) (Result, bool) {
	return Result{Refused: fmt.Sprintf(format, args...), Bound: bound}, false
}
