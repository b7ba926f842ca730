package auth

import (
	"context"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
)

// Cluster holds the users; *shard.Node implements it.
type Cluster interface {
	// Catalog returns this node's copy of the catalog; nil while there is none.
	Catalog() *catalog.View
	// CatchUp waits until the copy has every change that any node acknowledged before the
	// call.
	CatchUp(ctx context.Context) error
	// ChangeOnAll changes the catalog and waits for the other nodes to apply the change. It returns
	// the names of the nodes that did not confirm the change.
	ChangeOnAll(ctx context.Context, command *catalog.Command) (result *catalog.Result, behind []string, err error)
}

// Follow lets the Authorizer use the users of a cluster. Until ctx ends, Follow proves at intervals
// that these users are current, and reads the file of the root token. Call it once, in a goroutine.
func (a *Authorizer) Follow(ctx context.Context, cluster Cluster) {
	a.cluster.Store(&cluster)
	warned := false
	for {
		if err := a.root.load(a.cfg.Logger); err != nil {
			a.limited.Warn("cannot read the root token; the previous one stays in use", "err", err)
		}
		began := time.Now()
		wait := proveEvery
		if err := a.prove(ctx, cluster, began); err != nil {
			wait = proveAgain
			if ctx.Err() == nil {
				a.limited.Warn("cannot prove that this node's users are current", "err", err, "tokens_refused_after", trustMax.String())
			}
		} else if !warned && a.Enforces() {
			warned = true
			a.warnOfNobody(cluster.Catalog())
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// prove waits until this node's users are at least as current as the leader's users were when the
// call began.
func (a *Authorizer) prove(ctx context.Context, cluster Cluster, began time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, proveEvery)
	defer cancel()
	if err := cluster.CatchUp(ctx); err != nil {
		return err
	}
	a.proved.Store(&proof{began, began.Round(0)})
	return nil
}

// warnOfNobody warns if there is neither a user nor a root token, because the node then refuses
// every caller.
func (a *Authorizer) warnOfNobody(view *catalog.View) {
	if a.root.caller.Load() == nil && len(view.UsersByName()) == 0 {
		a.cfg.Logger.Warn("--auth enforce, but there is no user and no --root-token-file: every call except /healthz and /readyz is refused until another node creates a user")
	}
}
