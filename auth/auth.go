// Package auth authenticates callers and checks their rights. It owns tokens, roles and their
// rights, and the limits of users. It never stores users; the catalog does. It never serves a port;
// packages api and api/redis name the need of each route and command, and ask auth about each call.
//
// A node trusts its copy of the users for trustMax after it has proved that the copy is no older
// than that of the catalog's leader. So a deleted token becomes useless
//
//   - at once on a node that confirmed the deletion: the call that deleted the token waits
//     for the other nodes, and names each that does not confirm;
//   - at the latest trustMax after the deletion on any other node. A node that cannot reach the
//     catalog's leader for trustMax refuses every token but its root token;
//   - at once on a node that restarts: it trusts no copy without a new proof.
//
// Invariant: a call without a need is refused to everybody.
package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/internal/program"
	"github.com/countd/countd/raftfsm/catalog"
)

// Mode decides how a node treats a call that the caller may not make.
type Mode string

// The modes.
const (
	Off        Mode = "off"        // everybody may do everything; tokens are ignored
	Permissive Mode = "permissive" // everybody may do everything; calls that Enforce would refuse are logged and counted
	Enforce    Mode = "enforce"
)

// Set sets m to the mode that text names.
func (m *Mode) Set(text string) error {
	switch mode := Mode(text); mode {
	case Off, Permissive, Enforce:
		*m = mode
		return nil
	}
	return errors.New("want off, permissive or enforce")
}

// String returns the mode's name.
func (m *Mode) String() string { return string(*m) }

// Type describes the values of a flag of this type.
func (m *Mode) Type() string { return "off|permissive|enforce" }

// Refusal is the reason why a call is refused.
type Refusal uint8

// The refusals.
const (
	Granted    Refusal = iota // the call is not refused
	NoToken                   // there is no token
	BadToken                  // no user has the token
	Expired                   // the token has expired
	Unproven                  // this node cannot prove that its users are current
	Forbidden                 // the user's grants do not allow the call
	OverLimits                // the user's limits do not allow the call now
	refusals
)

// String returns the refusal's name in metrics and the audit log.
func (r Refusal) String() string {
	return [refusals]string{"granted", "no_token", "bad_token", "expired_token", "users_unproven", "permission_denied", "overloaded"}[r]
}

const (
	// trustMax is the time for which a node trusts its copy of the users after a proof. It is
	// longer than an election and a restart of the catalog's leader together.
	trustMax = 30 * time.Second
	// proveEvery is the interval at which a node proves its copy.
	proveEvery = 5 * time.Second
	// proveAgain is the pause before the retry of a failed proof.
	proveAgain = time.Second
)

// proof is the time at which a proof of the users began, by two clocks, because the monotonic clock
// may stop while a machine is suspended, and the wall clock may be set back.
type proof struct {
	at   time.Time
	wall time.Time // the same time without its monotonic reading
}

// Config configures an Authorizer.
type Config struct {
	Mode      Mode                 // Permissive or Enforce
	RootToken string               // path of the file with the root token; "" for none
	Audit     *AuditLog            // nil for none
	Registry  *prometheus.Registry // required
	Logger    *slog.Logger         // required
}

// Authorizer identifies callers and checks their rights. It is safe for concurrent use.
type Authorizer struct {
	cfg     Config
	limited *slog.Logger
	metrics *metrics
	root    rootToken
	cluster atomic.Pointer[Cluster] // nil until Follow is called
	// proved is the time at which the latest proof of the users began; nil for never.
	proved atomic.Pointer[proof]
	// callers holds the callers of one version of the users. Each version of the users has its own
	// pointer View.Users. The first call that finds a new pointer replaces callers.
	callers atomic.Pointer[callers]
	mu      struct {
		sync.Mutex // held while callers is replaced
		limiters   map[string]*limiter
	}
}

// New returns an Authorizer that accepts only the root token until Follow is called.
func New(cfg Config) (*Authorizer, error) {
	if cfg.Mode != Permissive && cfg.Mode != Enforce {
		return nil, fmt.Errorf("config: mode %q", cfg.Mode)
	}
	a := &Authorizer{cfg: cfg, limited: new(program.LogLimiter).Logger(cfg.Logger)}
	a.mu.limiters = map[string]*limiter{}
	a.root.path = cfg.RootToken
	err := a.root.load(cfg.Logger)
	if err == nil && cfg.RootToken != "" && a.root.caller.Load() == nil {
		err = fmt.Errorf("%s: %w", cfg.RootToken, fs.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the root token: %w", err)
	}
	a.metrics, err = newMetrics(cfg.Registry, a)
	return a, err
}

// Mode returns what the authorizer does with refused calls.
func (a *Authorizer) Mode() Mode { return a.cfg.Mode }

// Enforces reports whether refused calls fail.
func (a *Authorizer) Enforces() bool { return a.cfg.Mode == Enforce }

// Mask returns text for a log without the secrets of tokens.
func (a *Authorizer) Mask(text string) string {
	if a != nil {
		text = a.root.mask(text)
	}
	return MaskTokens(text)
}

// Caller is a user with one of its tokens, or the holder of the root token.
type Caller struct {
	Name  string // name of the user
	Token string // id of the token; "" for the root token

	hash    [sha256.Size]byte
	expires int64 // Unix time; 0 for never
	rights  *rights
	limiter *limiter // nil for none
}

// callers holds the callers of one view of the users, by id of the token. It never changes.
type callers struct {
	users *catalog.Users
	byID  map[string]*Caller
}

// tokenBytesMax bounds a token. Auth refuses a longer one without hashing it.
const tokenBytesMax = 512

// Identify returns the caller with a token, or the reason why there is none. It allocates nothing,
// takes no lock while the users stay the same, and hashes once.
func (a *Authorizer) Identify(token []byte, now time.Time) (*Caller, Refusal) {
	if len(token) == 0 {
		return nil, NoToken
	}
	if len(token) > tokenBytesMax {
		return nil, BadToken
	}
	hash := sha256.Sum256(token)
	if root := a.root.caller.Load(); root != nil && subtle.ConstantTimeCompare(root.hash[:], hash[:]) == 1 {
		return root, Granted
	}
	id := idOf(token)
	if id == nil {
		return nil, BadToken
	}
	all := a.trusted(now)
	if all == nil {
		return nil, Unproven
	}
	c := all.byID[string(id)]
	switch {
	case c == nil || subtle.ConstantTimeCompare(c.hash[:], hash[:]) != 1:
		return nil, BadToken
	case c.expired(now):
		return nil, Expired
	}
	return c, Granted
}

// Still returns the present state of the caller: since Identify, its token may have been deleted or
// its grants changed.
func (a *Authorizer) Still(c *Caller, now time.Time) (*Caller, Refusal) {
	if c.rights == rootRights {
		if root := a.root.caller.Load(); root == nil || root.hash != c.hash {
			return nil, BadToken
		}
		return c, Granted
	}
	all := a.trusted(now)
	if all == nil {
		return nil, Unproven
	}
	is := all.byID[c.Token]
	switch {
	case is == nil || is.hash != c.hash:
		return nil, BadToken
	case is.expired(now):
		return nil, Expired
	}
	return is, Granted
}

// Keeps returns Granted if a call that was allowed before may still be served, or else the reason
// against it. It refuses a caller that lost any right, even a right that the call does not need.
// The caller can repeat the call, because no part of it was served.
func (a *Authorizer) Keeps(c *Caller, now time.Time) Refusal {
	is, why := a.Still(c, now)
	if why == Granted && is != c && !is.rights.cover(c.rights) {
		return Forbidden
	}
	return why
}

func (c *Caller) expired(now time.Time) bool { return c.expires != 0 && now.Unix() >= c.expires }

// trusted returns the callers of the node's catalog. It returns nil if the node has not proved
// lately that its catalog is current.
func (a *Authorizer) trusted(now time.Time) *callers {
	cluster, proved := a.cluster.Load(), a.proved.Load()
	if cluster == nil || proved == nil || now.Sub(proved.at) > trustMax || now.Sub(proved.wall) > trustMax {
		return nil
	}
	users := (*cluster).Catalog().Users
	if all := a.callers.Load(); all != nil && all.users == users {
		return all
	}
	return a.replaceCallers(*cluster)
}

// replaceCallers replaces the callers by the users of the node's catalog.
func (a *Authorizer) replaceCallers(cluster Cluster) *callers {
	a.mu.Lock()
	defer a.mu.Unlock()
	view := cluster.Catalog()
	if all := a.callers.Load(); all != nil && all.users == view.Users {
		return all
	}
	all := &callers{users: view.Users, byID: map[string]*Caller{}}
	limiters := map[string]*limiter{}
	for _, u := range view.UsersByName() {
		rights := rightsOf(u.Grants)
		l := a.mu.limiters[u.Name]
		if l == nil || l.limits != u.Limits {
			l = newLimiter(u.Limits, l)
		}
		limiters[u.Name] = l
		for _, t := range u.Tokens {
			c := &Caller{Name: u.Name, Token: t.ID(), expires: t.Expires, rights: rights, limiter: l}
			if n, err := hex.Decode(c.hash[:], []byte(t.Hash)); err != nil || n != len(c.hash) {
				continue // cannot happen: the catalog refuses such a hash
			}
			all.byID[c.Token] = c
		}
	}
	a.mu.limiters = limiters
	a.callers.Store(all)
	return all
}

// May reports whether the caller has access to a keyspace.
func (c *Caller) May(access Access, keyspace []byte) bool {
	return c.rights.all.has(access) || c.rights.on[string(keyspace)].has(access)
}

// MayOnAny reports whether the caller has access to any keyspace.
func (c *Caller) MayOnAny(access Access) bool { return c.rights.any.has(access) }

// Accesses returns the names of the accesses that the caller has on some keyspace or on the cluster. A
// nil c has all accesses.
func (c *Caller) Accesses() []string {
	if c == nil {
		return rootRights.any.names()
	}
	return c.rights.any.names()
}

// Allows reports whether the caller may make a call with this need. A nil c means a caller without
// a valid token. keyspace is the keyspace in the path of the request. If the body names the
// keyspaces, access to any keyspace is enough here. In that case the server later checks each
// keyspace.
func (c *Caller) Allows(need *Need, keyspace []byte) bool {
	switch {
	case need.Access == Public:
		return true
	case need.Access == Nobody || c == nil:
		return false
	case need.Access == Known:
		return true
	case need.Access == Status || need.Access == Admin:
		return c.rights.all.has(need.Access)
	case need.In == InBody:
		return c.MayOnAny(need.Access)
	case need.In == InPath:
		return c.May(need.Access, keyspace)
	}
	for _, name := range need.Keyspaces {
		if !c.May(need.Access, []byte(name)) {
			return false
		}
	}
	return len(need.Keyspaces) > 0
}
