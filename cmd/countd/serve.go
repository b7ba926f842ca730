package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/api"
	"github.com/countd/countd/api/redis"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/cluster"
	"github.com/countd/countd/console"
	"github.com/countd/countd/internal/program"
	"github.com/countd/countd/internal/scarce"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/sources"
)

// signalApart is the least time between two separate stop signals. Signals closer together count as
// one, because process managers and terminals may signal both the process and its process group.
const signalApart = time.Second

// errServerEnded is returned if a server ends although nothing stopped it.
var errServerEnded = errors.New("a server ended by itself")

// process is a running node. start creates its parts from the bottom up, and stop ends them from
// the top down.
type process struct {
	logger     *slog.Logger
	notifier   *notifier // nil without NOTIFY_SOCKET
	registry   *prometheus.Registry
	dir        *cluster.DataDir
	starting   starting // the servers' backend until the node is open
	server     *api.Server
	redis      *redis.Server    // nil without --redis-addr
	auth       *auth.Authorizer // nil with --auth off
	audit      *auth.AuditLog   // nil without --audit-log
	unfollow   func()           // ends the goroutine of followUsers; nil until the goroutine is started
	served     chan error       // receives the result of Serve of each server
	tls        transport
	keys       *cluster.GossipKeys // nil without --gossip-key-file
	insecure   bool                // a port beyond loopback is an openPort
	gossip     *cluster.Gossip
	node       *shard.Node
	controller atomic.Pointer[cluster.Controller] // nil until the node serves
	admission  atomic.Pointer[cluster.Admission]  // nil until the node can admit others
	watcher    *watcher                           // nil until the node serves
	growth     *admin.AutoGrowth                  // nil until the node has servers
	backups    *admin.Backups                     // nil until the node has servers
	sources    *sources.Sources
}

// serve runs a node until a signal stops it.
func serve(c *config) error {
	// The first signal stops the node. A second signal ends the process if it comes at least
	// signalApart after the first.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	reloads := make(chan os.Signal, 1) // from here on, SIGHUP does not end the process
	signal.Notify(reloads, syscall.SIGHUP)

	logger := c.logger()
	for _, name := range c.strayEnv(os.Environ()) {
		logger.Warn("ignored an environment variable: not a setting", "name", name)
	}
	began := time.Now()
	type outcome struct {
		p   *process
		err error
	}
	started := make(chan outcome, 1)
	go func() { // ends once start returns, or with the process
		p, err := start(c, logger)
		started <- outcome{p, err}
	}()
	var p *process
	select {
	case s := <-signals:
		logger.Info("stopped before the start was complete", "signal", s.String())
		return nil // no request was accepted yet
	case o := <-started:
		if o.err != nil {
			return o.err
		}
		p = o.p
	}
	p.accept()             // accept no request earlier, because a signal during the start ends the process without a stop
	go p.reloadOn(reloads) // ends with the process
	go p.announce(began)
	go p.notifier.watch(watchdogEvery(), func() { _ = p.node.Ready() }) // ends with the process
	return p.run(signals, c.ShutdownDelay)
}

// run waits for a signal or the end of a server, and then stops the parts in order. delay is
// --shutdown-delay.
func (p *process) run(signals <-chan os.Signal, delay time.Duration) error {
	var failed error
	select {
	case s := <-signals:
		p.notifier.send("STOPPING=1" + status("stopping"))
		p.logger.Info("stopping", "signal", s.String())
	case err := <-p.served:
		failed, delay = errors.Join(errServerEnded, err), 0
	}
	asked := time.Now()
	go func() { // this goroutine ends with the process
		s := awaitAnother(signals, asked, signalApart)
		p.logger.Warn("exiting at once: the next start replays more of the log", "signal", s.String())
		os.Exit(exitFailed)
	}()
	began := time.Now()
	err := errors.Join(failed, p.stop(delay))
	p.logger.Info("stopped", "after", time.Since(began).Round(time.Millisecond).String())
	return err
}

// awaitAnother waits for a signal that arrives at least gap after firstAt, and returns it.
func awaitAnother(signals <-chan os.Signal, firstAt time.Time, gap time.Duration) os.Signal {
	for s := range signals {
		if time.Since(firstAt) >= gap {
			return s
		}
	}
	return nil // a channel of signals is never closed
}

// start starts the node. When it returns, the node can accept requests.
func start(c *config, logger *slog.Logger) (*process, error) {
	p := &process{logger: logger, notifier: newNotifier(logger), registry: prometheus.NewRegistry(), served: make(chan error, 2)}
	p.starting.waitFor(theStart)
	memoryLimit, err := c.memoryLimit()
	if err == nil {
		err = checkFileLimit(logger)
	}
	if err != nil {
		return nil, err
	}
	exposed, err := c.checkExposure(c.Auth.Mode == auth.Enforce, logger)
	if err != nil {
		return nil, err
	}
	p.insecure = exposed
	c.warnOfModes(logger)
	if p.dir, err = cluster.OpenDataDir(c.DataDir, c.NodeID); err != nil {
		return nil, err
	}
	// Steps that often fail come before steps that leave files behind.
	if err := p.tls.open(c, p); err != nil {
		return nil, errors.Join(err, p.dir.Close())
	}
	l, err := listen(c)
	if err != nil {
		p.tls.close()
		return nil, errors.Join(err, p.dir.Close())
	}
	p.tls.wrap(&l)
	if err := p.open(c, &l, memoryLimit); err != nil {
		err = errors.Join(err, p.stop(0))
		l.close()
		return nil, err
	}
	logger.Info("countd started",
		"version", program.VersionText(), "go", runtime.Version(), "pid", os.Getpid(),
		"node_id", p.dir.Identity.NodeID, "cluster_id", p.dir.Identity.ClusterID, "cluster_name", c.ClusterName, "data_dir", p.dir.Path(),
		"http_addr", l.http.Addr().String(), "cluster_addr", c.ClusterAddr, "gossip_addr", c.GossipAddr, "redis_addr", c.RedisAddr)
	return p, nil
}

// checkFileLimit refuses a limit of open files with which a node cannot run. It warns of a limit
// that leaves fewer than clientsFew connections for clients.
func checkFileLimit(logger *slog.Logger) error {
	const clientsFew = 8192
	const raise = "raise it: ulimit -n of a shell, LimitNOFILE= of a unit, --ulimit nofile= of a container"
	limit, err := scarce.FileLimit()
	switch {
	case err != nil:
		logger.Warn("cannot tell how many connections there is room for", "err", err)
	case limit < scarce.FilesMin:
		return fmt.Errorf("the limit of open files is %d, and a node needs %d, better %d: %s", limit, scarce.FilesMin, scarce.FilesWanted, raise)
	case limit.ForClients() < clientsFew:
		logger.Warn("the limit of open files is low: the node keeps half of it, and refuses connections beyond the rest",
			"limit", int(limit), "wanted", scarce.FilesWanted, "for_clients", limit.ForClients(), "hint", raise)
	}
	return nil
}

// open creates the servers, makes the node form or join its cluster, and opens its groups. If it
// fails, p contains the parts that it created, so that stop can end them.
func (p *process) open(c *config, l *ports, memoryLimit uint64) error {
	if err := p.startGossip(c); err != nil {
		return err
	}
	if err := p.dir.KeepIdentity(); err != nil {
		return err
	}
	if err := p.openAuth(c); err != nil {
		return err
	}
	p.sources = sources.New(sources.Config{
		Node: p.starting.opened, Self: p.dir.Identity.Key(), Alive: p.alive, Open: openBroker, SecretsDir: c.SourceSecrets, Logger: p.logger,
	})
	pages, err := console.New()
	if err != nil {
		return err
	}
	operators := admin.New(admin.Config{Node: p.starting.opened, Alive: p.alive, JoinsOthers: c.several(), SavedSources: func(ctx context.Context) (any, error) { return p.sources.Save(ctx) }, Logger: p.logger})
	if err := operators.Register(p.registry); err != nil {
		return err
	}
	if p.growth, err = admin.NewAutoGrowth(operators, c.AutoGrow.fixed, p.audit.Action, p.registry); err != nil {
		return err
	}
	if p.backups, err = admin.NewBackups(operators, c.Backup.settings(p.dir), p.audit.Action, p.registry); err != nil {
		return err
	}
	server, err := api.New(api.Config{
		Auth: p.auth, Audit: p.audit, Console: pages.Serve,
		Backend: &p.starting, Sources: p.sources, Outboxes: c.outboxes(), Admin: operators, Listener: l.http, Scheme: c.TLS.scheme(), AllowedHosts: c.allowedHosts(), Version: program.VersionText(), Registry: p.registry, Logger: p.logger,
	})
	if err != nil {
		return fmt.Errorf("cannot make HTTP server: %w", err)
	}
	p.server = server
	go func() { p.served <- server.Serve() }() // ended by stop
	if err := p.openRedis(c, l.redis); err != nil {
		return err
	}
	if err := p.dir.ReportRecovered(p.reportRecovery); err != nil {
		p.logger.Warn("cannot report what countctl recover did to this node; the node needs only the report's file removed", "err", err)
	}
	hadCluster := p.dir.Identity.ClusterID != ""
	if l.cluster, err = p.join(c, l.cluster); err != nil {
		return err
	}
	if l.cluster == nil {
		if l.cluster, err = listenCluster(c); err != nil {
			return err
		}
		l.cluster = p.tls.wrapCluster(l.cluster)
	}
	report := func(r *shard.NodeReport) {
		r.Insecure, r.CertProblems, r.Restoring = p.insecure, p.tls.problems(), operators.Restoring()
		r.Backups, r.BackupProblem = p.backups.Scheduled(), p.backups.Problem(time.Now())
	}
	c.Cold.Dir = p.dir.ColdDir()
	collector := tuneCollector(memoryLimit)
	p.node, err = shard.Open(shard.Config{
		Dir:              p.dir.GroupsDir(),
		NodeKey:          p.dir.Identity.Key(),
		NodeName:         p.dir.Identity.NodeID,
		Zone:             c.Zone,
		ClusterID:        p.dir.Identity.ClusterID,
		ClusterName:      c.ClusterName,
		Version:          program.VersionText(),
		ClusterAddr:      c.ClusterAddr,
		Listener:         l.cluster,
		HTTPAddr:         c.HTTPAddr,
		GossipAddr:       c.GossipAddr,
		Report:           report,
		Bootstrap:        p.dir.Identity.Founder,
		NodesWanted:      c.Expect,
		VotersWanted:     min(c.Expect, c.Placement.Replicas),
		LogStore:         c.LogStore,
		Opened:           p.dir,
		Shards:           c.Shards,
		Texts:            c.IDs,
		Limits:           c.Limits,
		CursorIdle:       c.CursorIdle,
		FeedIdle:         c.FeedIdle,
		MemoryLimit:      memoryLimit,
		CollectorPercent: collector,
		DiskReserve:      c.DiskReserve,
		Cold:             c.Cold,
		MembersDir:       p.dir.MembersDir(),
		MembersMemory:    c.MembersMemory,
		Place:            p.place(c.Placement),
		Alive:            p.alive,
		LiveAddr:         p.liveAddr,
		DialPeer:         p.dialPeer(),
		Handlers:         map[string]shard.Handler{cluster.JoinCall: p.admit, admin.PlanCall: p.plan, sources.ReportCall: p.sources.HandleReport},
		Streams:          map[string]shard.StreamHandler{admin.SnapshotCall: operators.SendSnapshot},
		Logger:           p.logger,
		Metrics:          p.registry,
		Fatal:            p.fatal,
	})
	if err != nil {
		return openFailed(err)
	}
	p.checkShards(c)
	p.checkAlone(c, hadCluster)
	return p.beginServing(c)
}

// openRedis starts the server for Redis clients if there is a listener for them.
func (p *process) openRedis(c *config, l net.Listener) error {
	if l == nil {
		return nil
	}
	server, err := redis.New(redis.Config{
		Backend: &p.starting, Outboxes: c.outboxes(), Auth: p.auth, Listener: l, Version: program.VersionText(), Registry: p.registry, Logger: p.logger,
	})
	if err != nil {
		return fmt.Errorf("cannot make Redis server: %w", err)
	}
	p.redis = server
	go func() { p.served <- server.Serve() }() // ended by stop
	return nil
}

// openFailed adds the remedy if err is due to a full disk.
func openFailed(err error) error {
	if errors.Is(err, errs.ErrDiskFull) {
		return fmt.Errorf("cannot open node: %w: free some of the disk, or give a lower --disk-reserve", err)
	}
	return fmt.Errorf("cannot open node: %w", err)
}

// checkAlone warns of settings for a cluster of several nodes if the node already is a cluster of
// one node.
func (p *process) checkAlone(c *config, hadCluster bool) {
	if hadCluster && len(p.node.Catalog().Nodes) == 1 && c.several() {
		p.logger.Warn("this node is the only one of its cluster: it ignores --bootstrap-expect and --join; to join another cluster it needs a new data directory",
			"cluster_id", p.dir.Identity.ClusterID)
	}
}

// checkShards warns of each keyspace that was created with another number of shards than --shards, and of each
// keyspace whose ids leave shards empty.
func (p *process) checkShards(c *config) {
	for name, shards := range c.Shards {
		if keyspace := p.node.Keyspace(name); keyspace != nil && cmp.Or(keyspace.CreatedShards, keyspace.Shards) != shards {
			p.logger.Warn("--shards is for new clusters; countctl keyspace grow multiplies the shards of a keyspace", "keyspace", name, "shards", keyspace.Shards, "setting", shards)
		}
	}
	for _, keyspace := range p.node.Keyspaces() {
		if warning := p.node.SkewWarning(keyspace); warning != "" {
			p.logger.Warn("the ids of a keyspace may crowd in some of its shards", "keyspace", keyspace.Name, "why", warning)
		}
	}
}

// fatal ends the process because of an error such as a log that cannot be written. If the process
// continued, the node might acknowledge writes that are not durable. fatal closes no file, because
// closing would write.
func (p *process) fatal(err error) {
	p.logger.Error("fatal: exiting, so that no write is acknowledged that is not durable", "err", err)
	os.Exit(exitFailed)
}

// announce waits until the node is ready, and then logs this. It also returns if the node closes.
func (p *process) announce(began time.Time) {
	if err := p.node.WaitReady(context.Background()); err == nil {
		p.notifier.send("READY=1" + status("serving"))
		p.logger.Info("ready", "after", time.Since(began).Round(time.Millisecond).String())
	}
}
