package admin

import (
	"context"
	"net/url"
	"strconv"

	"github.com/countd/countd/client"
)

// ClusterNode is one node of a cluster as the cluster reports it.
type ClusterNode struct {
	ID           string   `json:"id"`  // the node's name, or its key if another node has that name
	Key          string   `json:"key"` // unique to this node; its name may have belonged to another node before
	Zone         string   `json:"zone"`
	State        string   `json:"state"`     // active, draining or leaving
	Alive        bool     `json:"alive"`     // according to gossip
	Answers      bool     `json:"answers"`   // the node answered the request for this report
	NotReady     string   `json:"not_ready"` // why the node cannot serve; "" if it can serve or does not answer
	Life         string   `json:"life"`      // a text that changes with each restart; "" if the node does not answer
	Version      string   `json:"version"`
	VersionMax   int      `json:"version_max"` // the highest cluster version that its program supports
	Leads        int      `json:"leads"`       // number of groups that the node leads
	Replicas     int      `json:"replicas"`    // number of groups that the node is a member of
	MemoryFull   bool     `json:"memory_full"`
	DiskFull     bool     `json:"disk_full"`
	DiskHangs    bool     `json:"disk_hangs,omitempty"`    // a write to the Raft log has been running for over a second
	Insecure     bool     `json:"insecure,omitempty"`      // --insecure let the node listen beyond loopback without TLS or authentication
	CertProblems []string `json:"cert_problems,omitempty"` // what is wrong with its certificates
	JoinIgnored  bool     `json:"join_ignored,omitempty"`  // the node is alone, and was started with --join
	// BackupProblem is what is wrong with the backups by --backup-to; "" if nothing is, or if the node does not lead the
	// catalog.
	BackupProblem string `json:"backup_problem,omitempty"`
	// The node refuses new rows once it needs more memory than its limit. It refuses writes once it needs more
	// free disk than it has. A limit of 0 means no limit. All these fields are 0 if the node does not answer.
	MemoryNeededBytes uint64 `json:"memory_needed_bytes"`
	MemoryLimitBytes  uint64 `json:"memory_limit_bytes"`
	DiskNeededBytes   uint64 `json:"disk_needed_bytes"`
	DiskFreeBytes     uint64 `json:"disk_free_bytes"`
	OpsWritten        uint64 `json:"ops_written"` // write ops of clients and sources that the node has answered since its start; repeats do not count
	IDsRead           uint64 `json:"ids_read"`    // number of ids in the reads that the node has answered since its start

	HTTPAddr    string `json:"http_addr"`
	ClusterAddr string `json:"cluster_addr"`
	GossipAddr  string `json:"gossip_addr"`
}

// ClusterNodes are the nodes of a cluster, by key.
type ClusterNodes struct {
	ClusterID   string        `json:"cluster_id"`
	ClusterName string        `json:"cluster_name,omitempty"` // "" if the answering node was given no name
	Nodes       []ClusterNode `json:"nodes"`
}

// ClusterGroup is one Raft group with its replicas.
type ClusterGroup struct {
	ID          uint32    `json:"id"`
	Keyspace    string    `json:"keyspace"` // "meta" for the group of the catalog
	Shard       int       `json:"shard"`
	Leader      string    `json:"leader"` // "" if no leader answers
	Term        uint64    `json:"term"`
	Target      []string  `json:"target"` // the nodes that are to be voters
	Voters      []string  `json:"voters"`
	NonVoters   []string  `json:"non_voters"`
	Rows        uint64    `json:"rows"`
	Bytes       uint64    `json:"bytes"`        // bytes in the leader's memory
	ColdRows    uint64    `json:"cold_rows"`    // the part of Rows that is on the leader's disk instead of in memory
	ColdBytes   uint64    `json:"cold_bytes"`   // bytes on the leader's disk
	SealedRows  uint64    `json:"sealed_rows"`  // the part of Rows that is packed in the leader's memory
	SealedBytes uint64    `json:"sealed_bytes"` // bytes of packed rows, included in Bytes
	Replicas    []Replica `json:"replicas"`
	// Misfit describes rows whose ids do not fit the leader's --id-layout; nil for none.
	Misfit *Misfit `json:"id_layout_misfit,omitempty"`
}

// Misfit describes rows whose ids do not fit the layout of their keyspace.
type Misfit struct {
	ID     client.ID `json:"id"` // id of one of these rows
	Layout string    `json:"layout"`
	Fits   string    `json:"fits"` // a layout that fits more ids; "none" if no layout fits; "" if no layout is better
	Rows   uint64    `json:"rows"` // estimated number of these rows
}

// Replica is one replica of a group, as its node reported it.
type Replica struct {
	Node         string `json:"node"`
	ID           string `json:"replica"` // its Raft id, which no other replica of the group has ever had
	Role         string `json:"role"`
	AppliedIndex uint64 `json:"applied_index"`
	Lag          uint64 `json:"lag"`                    // number of entries that the leader has applied but this replica has not
	ColdDamaged  bool   `json:"cold_damaged,omitempty"` // some of its rows on disk cannot be read
}

// GroupDigests holds the digests of the replicas of a group, for comparison.
type GroupDigests struct {
	ID       uint32          `json:"id"`
	Keyspace string          `json:"keyspace"`
	Shard    int             `json:"shard"`
	Replicas []ReplicaDigest `json:"replicas"`
}

// ReplicaDigest is a replica's digest now and at earlier indexes.
type ReplicaDigest struct {
	Node         string       `json:"node"`
	AppliedIndex uint64       `json:"applied_index"`
	Digest       string       `json:"digest"` // 16 hex digits
	Marks        []DigestMark `json:"marks"`
	Entries      []EntryMark  `json:"entries"` // the newest entries that the replica applied, by index
}

// DigestMark is a replica's digest at an index.
type DigestMark struct {
	Index  uint64 `json:"index"`
	Digest string `json:"digest"`
}

// EntryMark identifies an applied entry among entries with the same index.
type EntryMark struct {
	Index uint64 `json:"index"`
	Term  uint64 `json:"term"`
	CRC   string `json:"crc"` // 8 hex digits
}

// PlanStep is one of the next steps of the placement.
type PlanStep struct {
	Step    string   `json:"step"`            // place, transfer, set_node_state, remove_node or raise_version
	Group   *uint32  `json:"group,omitempty"` // group of the steps place and transfer
	Name    string   `json:"name,omitempty"`  // the group's name, such as posts/3
	Add     []string `json:"add,omitempty"`
	Remove  []string `json:"remove,omitempty"`
	From    string   `json:"from,omitempty"`
	To      string   `json:"to,omitempty"`
	Node    string   `json:"node,omitempty"`
	State   string   `json:"state,omitempty"`
	Version int      `json:"version,omitempty"`
	Reason  string   `json:"reason"`
}

// ClusterVersion determines which commands and formats the nodes may use.
type ClusterVersion struct {
	Version int  `json:"version"`
	Max     int  `json:"max"` // the highest version that all nodes support
	Held    bool `json:"held"`
}

// Changed is the result of a change: the new state of the node, group or cluster version.
type Changed struct {
	Changed bool            `json:"changed"` // false if the node, group or version already had the requested state
	Node    *ChangedNode    `json:"node,omitempty"`
	Group   *ChangedGroup   `json:"group,omitempty"`
	Version *ClusterVersion `json:"version,omitempty"`
}

// ChangedNode is a node after a change of its state.
type ChangedNode struct {
	ID    string `json:"id"`
	Key   string `json:"key"`
	State string `json:"state"`
}

// ChangedGroup is a group after a change of its leader or target.
type ChangedGroup struct {
	ID     uint32   `json:"id"`
	Leader string   `json:"leader"`
	Target []string `json:"target"`
}

// Cluster is the state of a node and of its groups.
type Cluster struct {
	ClusterID   string  `json:"cluster_id"`
	ClusterName string  `json:"cluster_name"` // "" if the answering node was given no name
	Nodes       []Node  `json:"nodes"`
	Groups      []Group `json:"groups"`
}

// Node describes one node.
type Node struct {
	ID          string `json:"id"`
	State       string `json:"state"`
	Version     string `json:"version"`
	HTTPAddr    string `json:"http_addr"`
	ClusterAddr string `json:"cluster_addr"`
	GossipAddr  string `json:"gossip_addr"`
}

// Group describes one replica of one Raft group. Two replicas with the same AppliedIndex have
// equal digests.
type Group struct {
	ID            uint32 `json:"id"`
	Replica       string `json:"replica"` // its Raft id, which no other replica of the group has ever had
	Keyspace      string `json:"keyspace"`
	Shard         int    `json:"shard"`
	Role          string `json:"role"`
	Leader        string `json:"leader"` // node id; "" when not known
	Term          uint64 `json:"term"`
	AppliedIndex  uint64 `json:"applied_index"`
	CommitIndex   uint64 `json:"commit_index"`
	SnapshotIndex uint64 `json:"snapshot_index"`
	Digest        string `json:"digest"` // 16 hex digits, at AppliedIndex
	Rows          uint64 `json:"rows"`
	Bytes         uint64 `json:"bytes"`        // bytes of memory
	ColdRows      uint64 `json:"cold_rows"`    // the part of Rows that is on disk instead of in memory
	ColdBytes     uint64 `json:"cold_bytes"`   // bytes of disk
	ColdDamaged   bool   `json:"cold_damaged"` // some of the cold rows cannot be read
	SealedRows    uint64 `json:"sealed_rows"`  // the part of Rows that is packed in memory
	SealedBytes   uint64 `json:"sealed_bytes"` // bytes of packed rows, included in Bytes
	// Members is the group's configuration as the replica knows it.
	Members []GroupMember `json:"members"`
}

// GroupMember is one member of a group's configuration.
type GroupMember struct {
	Node    string `json:"node"`
	Key     string `json:"key"`
	Replica string `json:"replica"`
	Voter   bool   `json:"voter"`
}

// Cluster reads the state of nodes and groups.
func (c Client) Cluster(ctx context.Context) (Cluster, error) {
	return client.Ask[Cluster](ctx, c.c, get("/v1/cluster"))
}

// ClusterNodes lists the nodes of the cluster.
func (c Client) ClusterNodes(ctx context.Context) (ClusterNodes, error) {
	return client.Ask[ClusterNodes](ctx, c.c, get("/v1/admin/nodes"))
}

// ClusterGroups lists the groups of the cluster, by number.
func (c Client) ClusterGroups(ctx context.Context) ([]ClusterGroup, error) {
	return client.AskMember[[]ClusterGroup](ctx, c.c, get("/v1/admin/groups"), "groups")
}

// Digests returns the digests of all replicas.
func (c Client) Digests(ctx context.Context) ([]GroupDigests, error) {
	return client.AskMember[[]GroupDigests](ctx, c.c, get("/v1/admin/digests"), "groups")
}

// Plan returns the next steps of the placement.
func (c Client) Plan(ctx context.Context) ([]PlanStep, error) {
	return client.AskMember[[]PlanStep](ctx, c.c, get("/v1/admin/plan"), "steps")
}

// ClusterVersion reads the cluster version.
func (c Client) ClusterVersion(ctx context.Context) (ClusterVersion, error) {
	return client.Ask[ClusterVersion](ctx, c.c, get("/v1/admin/version"))
}

// changeCluster makes a change. The call returns once the change has begun, and may be repeated.
func (c Client) changeCluster(ctx context.Context, what string, request any) (Changed, error) {
	return client.Ask[Changed](ctx, c.c, post("/v1/admin/"+what, request))
}

// Drain moves the leaders off a node and keeps new replicas away from it. node is its name or key.
func (c Client) Drain(ctx context.Context, node string) (Changed, error) {
	return c.changeCluster(ctx, "nodes/"+url.PathEscape(node)+"/drain", struct{}{})
}

// Undrain ends the drain of a node, or cancels its removal.
func (c Client) Undrain(ctx context.Context, node string) (Changed, error) {
	return c.changeCluster(ctx, "nodes/"+url.PathEscape(node)+"/undrain", struct{}{})
}

// Remove makes a node leave the cluster once other nodes hold its replicas.
func (c Client) Remove(ctx context.Context, node string) (Changed, error) {
	return c.changeCluster(ctx, "nodes/"+url.PathEscape(node)+"/remove", struct{}{})
}

// Transfer transfers the leadership of a group to another of its voters.
func (c Client) Transfer(ctx context.Context, group uint32, to string) (Changed, error) {
	return c.changeCluster(ctx, groupPath(group, "transfer"), map[string]string{"to": to})
}

// Move moves a replica of a group to another node.
func (c Client) Move(ctx context.Context, group uint32, from, to string) (Changed, error) {
	return c.changeCluster(ctx, groupPath(group, "move"), map[string]string{"from": from, "to": to})
}

// HoldVersion holds the cluster version at its present value, or releases it.
func (c Client) HoldVersion(ctx context.Context, held bool) (Changed, error) {
	return c.changeCluster(ctx, "version", map[string]bool{"hold": held})
}

// FinalizeVersion releases the cluster version and raises it to the highest that all nodes
// support.
func (c Client) FinalizeVersion(ctx context.Context) (Changed, error) {
	return c.changeCluster(ctx, "version", map[string]bool{"finalize": true})
}

func groupPath(group uint32, verb string) string {
	return "groups/" + strconv.FormatUint(uint64(group), 10) + "/" + verb
}
