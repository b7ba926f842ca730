package cluster

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

const (
	// restartWait is enough time for a node with a large log to start.
	restartWait = 10 * time.Minute
	// A replica counts as caught up if it is at most caughtUpLag entries behind. The bound is above
	// 0, because clients write during the restart.
	caughtUpLag = 100
	// rollingCleanup bounds how long an interrupted restart tries to undrain its node.
	rollingCleanup = 15 * time.Second
)

type rollingOutput struct {
	Restarted []restartedNode `json:"restarted"`
}

type restartedNode struct {
	Node    string  `json:"node"`
	Seconds float64 `json:"seconds"` // from the start of the drain to the end of the undrain
}

// rolling is the state of one run of rolling-restart.
type rolling struct {
	*cli.CLI
	server *client.Client
	exec   string
	wait   time.Duration
}

func rollingRestartCommand(c *cli.CLI) *cobra.Command {
	r := rolling{CLI: c, wait: restartWait}
	var only []string
	cmd := &cobra.Command{
		Use:   "rolling-restart --exec 'COMMAND with {id}'",
		Short: "Restart the nodes one by one: drain each first, then wait until it has caught up",
		Long: `Restart the nodes one by one: drain each first, then wait until it has caught up.

For each node: drain it, run COMMAND with sh, with {id}, {key} and {http} (its HTTP address)
replaced, wait until the node is back in a new process, is ready and has caught up, and
undrain it. The command starts only on a healthy cluster, and stops at the first node that
does not come back, which stays drained. COMMAND runs in a process group of its own and
cannot ask on the terminal. Ctrl-C waits until COMMAND has ended and undrains the node. When
it stops early it prints the state of each node, and what to run to continue.`,
		Example: `  countctl rolling-restart --exec 'ssh {id} systemctl restart countd'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if r.exec == "" {
				return cli.Usagef("rolling-restart needs --exec")
			}
			return r.run(cmd.Context(), only)
		},
	}
	cmd.Flags().StringVar(&r.exec, "exec", "", "command that restarts a node; it may return before the node is back")
	cmd.Flags().StringSliceVar(&only, "nodes", nil, "restart only these, in this order (default: all)")
	cli.WaitFlag(cmd, &r.wait)
	return cmd
}

func (r *rolling) run(ctx context.Context, only []string) error {
	server, nodes, err := r.Operate(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	r.server = server
	for _, n := range nodes {
		if !n.Alive {
			return fmt.Errorf("%s is dead: rolling-restart begins only with a cluster that is whole", n.ID)
		}
	}
	if len(only) > 0 {
		if nodes, err = chosen(nodes, only); err != nil {
			return err
		}
	}
	r.Say("%s are restarted one by one: drain, %s, wait until the node has caught up, undrain", namesOf(nodes, ", "), r.exec)
	if err := r.ConfirmRisk("Restart them?"); err != nil {
		return err
	}
	out := rollingOutput{Restarted: []restartedNode{}}
	for i, n := range nodes {
		began := time.Now()
		if err := r.restartNode(ctx, n); err != nil {
			r.sayWhatIsLeft(ctx, nodes[i:])
			if ctx.Err() != nil {
				err = errors.New("it was interrupted")
			}
			return fmt.Errorf("cannot restart %s (%d of %d nodes are): %w", n.ID, len(out.Restarted), len(nodes), err)
		}
		out.Restarted = append(out.Restarted, restartedNode{n.ID, time.Since(began).Seconds()})
	}
	return r.Print(out, func(t *cli.Table) {
		t.Row("RESTARTED", "SECONDS")
		for _, n := range out.Restarted {
			t.Row(n.Node, fmt.Sprintf("%.1f", n.Seconds))
		}
	})
}

func namesOf(nodes []admin.ClusterNode, sep string) string {
	var names []string
	for _, n := range nodes {
		names = append(names, n.ID)
	}
	return strings.Join(names, sep)
}

func chosen(nodes []admin.ClusterNode, only []string) ([]admin.ClusterNode, error) {
	var list []admin.ClusterNode
	for _, name := range only {
		n, there := findNode(nodes, name)
		if !there {
			return nil, cli.Usagef("--nodes: there is no node %s", name)
		}
		list = append(list, n)
	}
	return list, nil
}

// restartNode drains one node, restarts it, waits until it is back, and undrains it.
func (r *rolling) restartNode(ctx context.Context, n admin.ClusterNode) error {
	if err := r.Await(ctx, r.wait, func(ctx context.Context) (string, error) { return r.unsound(ctx, "") }); err != nil {
		return fmt.Errorf("the cluster is not whole: %w", err)
	}
	before, there, err := nodeNow(ctx, r.server, n.Key)
	if err != nil || !there {
		return errors.Join(err, fmt.Errorf("%s is not there any more", n.ID))
	}
	r.Say("%s: drain", n.ID)
	waiting := *r.CLI
	waiting.NoWait = false
	if _, err := drain(ctx, &waiting, r.server, n, r.wait); err != nil {
		if ctx.Err() != nil {
			err = errors.Join(err, r.undrain(ctx, n))
		}
		return err
	}
	r.Say("%s: restart", n.ID)
	if err := r.restart(ctx, n); err != nil || ctx.Err() != nil {
		return errors.Join(err, r.undrain(ctx, n), ctx.Err())
	}
	if err := r.Await(ctx, r.wait, func(ctx context.Context) (string, error) { return r.away(ctx, n, before.Life) }); err != nil {
		if ctx.Err() != nil {
			return errors.Join(err, r.undrain(ctx, n))
		}
		return fmt.Errorf("%w; it stays drained", err)
	}
	r.Say("%s: undrain", n.ID)
	if _, err := admin.New(r.server).Undrain(ctx, n.Key); err != nil {
		return fmt.Errorf("cannot undrain it: %w", err)
	}
	return nil
}

// restart runs the --exec command for a node. It inserts the node's name without quotes, because
// such a name has no characters that are special to a shell. The command runs in a process group of
// its own, so that Ctrl-C does not interrupt it. restart waits for the command even if ctx ends.
func (r *rolling) restart(ctx context.Context, n admin.ClusterNode) error {
	line := strings.NewReplacer("{id}", n.ID, "{key}", n.Key, "{http}", n.HTTPAddr).Replace(r.exec)
	cmd := exec.Command("sh", "-c", line)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stdout, cmd.Stderr = r.Err, r.Err
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%q: %w", line, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // this goroutine ends when the command ends
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		r.Say("interrupted; waiting for the restart of %s to end (a second signal leaves it as it is)", n.ID)
		err = <-ended
	}
	if err != nil {
		return fmt.Errorf("%q: %w", line, err)
	}
	return nil
}

// afterwards returns a context for cleanup. It does not end with ctx, but after rollingCleanup.
func afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), rollingCleanup)
}

func (r *rolling) undrain(ctx context.Context, n admin.ClusterNode) error {
	ctx, cancel := afterwards(ctx)
	defer cancel()
	err := r.Await(ctx, rollingCleanup, func(ctx context.Context) (string, error) {
		_, err := admin.New(r.server).Undrain(ctx, n.Key)
		return "", err
	})
	if err != nil {
		return fmt.Errorf("cannot undrain it: %w", err)
	}
	return nil
}

// sayWhatIsLeft prints the state of each node, and a command that restarts the remaining nodes.
func (r *rolling) sayWhatIsLeft(ctx context.Context, remaining []admin.ClusterNode) {
	ctx, cancel := afterwards(ctx)
	defer cancel()
	seen, err := admin.New(r.server).ClusterNodes(ctx)
	if err != nil {
		r.Say("the state of the nodes is unknown (%v); see countctl status", err)
		return
	}
	for _, n := range seen.Nodes {
		what := condition(n)
		switch {
		case !n.Alive || !n.Answers:
			r.Say("%s is %s; if it is not starting already, start countd on it", n.ID, what)
		default:
			r.Say("%s is %s", n.ID, what)
		}
		if n.State == "draining" {
			r.Say("%s is drained; end that with: countctl node undrain %s", n.ID, n.ID)
		}
	}
	r.Say("continue with: countctl rolling-restart --nodes %s --exec '%s'", namesOf(remaining, ","), r.exec)
}

// away returns why a restarted node is not back yet, or "" if it is back. life is the node's
// ClusterNode.Life from before the restart.
func (r *rolling) away(ctx context.Context, n admin.ClusterNode, life string) (string, error) {
	now, there, err := nodeNow(ctx, r.server, n.Key)
	switch {
	case err != nil:
		return "", err
	case !there:
		return n.ID + " is not in the cluster", nil
	case !now.Answers:
		return n.ID + " does not answer", nil
	case now.Life == life:
		return n.ID + " has not been restarted yet", nil
	case now.NotReady != "":
		return n.ID + " is not ready: " + now.NotReady, nil
	}
	return r.unsound(ctx, n.ID)
}

// unsound returns why the cluster cannot spare a node now, or "" if it can. It ignores the
// condition of the node exceptID, because the caller has checked that node.
func (r *rolling) unsound(ctx context.Context, exceptID string) (string, error) {
	seen, err := admin.New(r.server).ClusterNodes(ctx)
	if err != nil {
		return "", err
	}
	for _, n := range seen.Nodes {
		if what := condition(n); what != "alive" && n.ID != exceptID {
			return n.ID + " is " + what, nil
		}
	}
	groups, err := admin.New(r.server).ClusterGroups(ctx)
	if err != nil {
		return "", err
	}
	for _, g := range groups {
		switch {
		case g.Leader == "":
			return cli.GroupName(g) + " has no leader", nil
		case !sameNames(g.Voters, g.Target):
			return cli.GroupName(g) + " is being moved", nil
		case len(g.Replicas) < len(g.Voters)+len(g.NonVoters):
			return fmt.Sprintf("%s: only %d of %d replicas answer", cli.GroupName(g), len(g.Replicas), len(g.Voters)+len(g.NonVoters)), nil
		case lagOf(g) > caughtUpLag:
			return fmt.Sprintf("a replica of %s is %s entries behind", cli.GroupName(g), cli.Grouped(lagOf(g))), nil
		}
	}
	return "", nil
}
