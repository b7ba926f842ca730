package redis

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	runtimemetrics "runtime/metrics"
	"slices"
	"strings"
	"time"

	"github.com/countd/countd/api/redis/resp"
)

// replicasMax is the number of replicas of each shard in a cluster with enough nodes.
const replicasMax = 3

// wait replies at once. An acknowledged write is on a majority of the voters of its shard, and this
// node may be one of them. So wait replies with half of the voters, rounded down: at least that
// many other nodes have the write.
func wait(c *conn, args [][]byte) {
	if _, ok := resp.ParseInt(args[1]); !ok {
		c.refuse(string(resp.ErrNotInteger))
		return
	}
	if ms, ok := resp.ParseInt(args[2]); !ok || ms < 0 {
		c.refuse("ERR timeout is not an integer or out of range")
		return
	}
	nodes := min(len(c.server.node().Status().Nodes), replicasMax)
	c.out.Buf = resp.AppendInt(c.out.Buf, int64(nodes/2))
}

// configCommand replies with the settings that tools read.
func configCommand(c *conn, args [][]byte) {
	if !strings.EqualFold(string(args[1]), "get") {
		c.refuse(unknownSubcommand("config", args[1]))
		return
	}
	if len(args) < 3 {
		c.refuse(wrongArity("config|get"))
		return
	}
	cfg := &c.server.cfg
	c.out.Buf = resp.AppendSettings(c.out.Buf, [][2]string{
		{"appendfsync", "always"},
		{"appendonly", "yes"},
		{"databases", "1"},
		{"maxclients", fmt.Sprint(cfg.ConnsMax)},
		{"maxmemory", "0"},
		{"proto-max-bulk-len", fmt.Sprint(cfg.BulkBytesMax)},
		{"save", ""},
		{"timeout", fmt.Sprint(int(cfg.IdleTimeout.Seconds()))},
	}, args[2:], c.resp3)
}

// infoCommand replies with the sections that the client names, or with all sections if it names
// none.
func infoCommand(c *conn, args [][]byte) {
	c.out.Buf = resp.AppendInfo(c.out.Buf, c.sections(), args[1:], c.resp3)
}

func (c *conn) sections() []resp.Section {
	s := c.server
	memory := []runtimemetrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/total:bytes"}}
	runtimemetrics.Read(memory)
	status := s.node().Status()
	up := time.Since(s.started)
	sections := []resp.Section{
		{Name: "server", Lines: [][2]any{
			{"redis_version", spokenVersion}, {"redis_mode", "standalone"}, {"countd_version", s.cfg.Version},
			{"os", runtime.GOOS + " " + runtime.GOARCH}, {"process_id", os.Getpid()},
			{"uptime_in_seconds", int(up.Seconds())}, {"uptime_in_days", int(up.Hours() / 24)},
		}},
		{Name: "clients", Lines: [][2]any{{"connected_clients", s.listener.Open()}, {"maxclients", s.cfg.ConnsMax}}},
		{Name: "memory", Lines: [][2]any{{"used_memory", memory[0].Value.Uint64()}, {"used_memory_rss", memory[1].Value.Uint64()}, {"maxmemory", 0}}},
		{Name: "persistence", Lines: [][2]any{{"loading", 0}, {"aof_enabled", 1}, {"aof_last_write_status", "ok"}}},
		{Name: "replication", Lines: [][2]any{{"role", "master"}, {"connected_slaves", max(len(status.Nodes)-1, 0)}}},
		{Name: "cluster", Lines: [][2]any{{"cluster_enabled", 0}}},
		{Name: "keyspace", Lines: nil},
	}
	rows := uint64(0)
	for _, g := range status.Groups {
		if isCounters(s.node().Keyspace(g.Keyspace)) && c.mayRead(g.Keyspace) {
			rows += g.Rows
		}
	}
	if rows > 0 {
		last := &sections[len(sections)-1]
		last.Lines = [][2]any{{"db0", fmt.Sprintf("keys=%d,expires=0,avg_ttl=0", rows)}}
	}
	return sections
}

// commands implements COMMAND.
func commands(c *conn, args [][]byte) {
	all := slices.SortedFunc(maps.Values(c.server.commands), func(a, b *command) int { return strings.Compare(a.name, b.name) })
	if len(args) == 1 {
		c.commandInfo(all)
		return
	}
	switch sub := strings.ToLower(string(args[1])); {
	case sub == "count" && len(args) == 2:
		c.out.Buf = resp.AppendInt(c.out.Buf, int64(len(all)))
	case sub == "info":
		c.commandInfo(c.server.commands.named(args[2:], all))
	case sub == "docs":
		c.commandDocs(c.server.commands.named(args[2:], all))
	default:
		c.refuse(unknownSubcommand("command", args[1]))
	}
}

// named returns the commands with the given names, with nil for an unknown name. Without names, it
// returns all commands.
func (t commandTable) named(names [][]byte, all []*command) []*command {
	if len(names) == 0 {
		return all
	}
	found := make([]*command, len(names))
	for i, name := range names {
		found[i] = t.find(name)
	}
	return found
}

// commandInfo replies with the properties of commands, and null for an unknown command.
func (c *conn) commandInfo(found []*command) {
	c.out.Buf = resp.AppendArray(c.out.Buf, len(found))
	for _, cmd := range found {
		if cmd == nil {
			c.out.Buf = resp.AppendNullArray(c.out.Buf, c.resp3)
		} else {
			c.out.Buf = cmd.appendInfo(c.out.Buf, c.resp3)
		}
	}
}

// commandDocs replies with the documentation of commands. It omits unknown commands.
func (c *conn) commandDocs(found []*command) {
	found = slices.DeleteFunc(found, func(cmd *command) bool { return cmd == nil })
	out := resp.AppendMap(c.out.Buf, len(found), c.resp3)
	for _, cmd := range found {
		out = resp.AppendMap(resp.AppendBulk(out, cmd.name), 2, c.resp3)
		out = resp.AppendBulk(resp.AppendBulk(out, "summary"), cmd.does)
		out = resp.AppendBulk(resp.AppendBulk(out, "group"), cmd.group)
	}
	c.out.Buf = out
}

// appendInfo appends the command in the format of COMMAND INFO.
func (cmd *command) appendInfo(dst []byte, resp3 bool) []byte {
	dst = resp.AppendBulk(resp.AppendArray(dst, 10), cmd.name)
	dst = resp.AppendInt(dst, int64(cmd.arity))
	flag := "readonly"
	switch {
	case cmd.traits&writes != 0:
		flag = "write"
	case cmd.traits&(keyed|joins|readsSets) == 0:
		flag = "fast"
	}
	dst = resp.AppendWord(resp.AppendSet(dst, 1, resp3), flag)
	for _, n := range []int{cmd.keys.First, cmd.keys.Last, cmd.keys.Step} {
		dst = resp.AppendInt(dst, int64(n))
	}
	for range 4 { // categories, tips, key specifications, subcommands
		dst = resp.AppendArray(dst, 0)
	}
	return dst
}
