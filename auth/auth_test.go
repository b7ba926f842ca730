package auth

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/raftfsm/catalog"
)

// fakeCluster is a catalog without nodes.
type fakeCluster struct {
	mu struct {
		sync.Mutex
		view *catalog.View
		err  error // result of CatchUp
	}
}

func newFakeCluster() *fakeCluster {
	c := &fakeCluster{}
	c.mu.view = catalog.New().View()
	c.mu.view.ClusterVersion = catalog.ClusterVersionMax
	return c
}

func (c *fakeCluster) Catalog() *catalog.View {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.view
}

func (c *fakeCluster) CatchUp(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.err
}

func (c *fakeCluster) ChangeOnAll(_ context.Context, command *catalog.Command) (*catalog.Result, []string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	view, result := c.mu.view.After(command)
	c.mu.view = view
	return result, nil, nil
}

// authorizerOf returns an Authorizer that follows a cluster and has just proved its users.
func authorizerOf(t testing.TB, mode Mode, c *fakeCluster) *Authorizer {
	t.Helper()
	a, err := New(Config{Mode: mode, Registry: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	var cluster Cluster = c
	a.cluster.Store(&cluster)
	if err := a.prove(t.Context(), c, time.Now()); err != nil {
		t.Fatal(err)
	}
	return a
}

// tokenOf creates a user with one token.
func tokenOf(t testing.TB, c *fakeCluster, user string, expiresIn time.Duration, grants ...catalog.Grant) (token []byte, id string) {
	t.Helper()
	if _, _, err := PutUser(t.Context(), c, user, catalog.UserRights{Grants: grants}, nil); err != nil {
		t.Fatal(err)
	}
	made, text, _, err := AddToken(t.Context(), c, user, expiresIn)
	if err != nil {
		t.Fatal(err)
	}
	return []byte(text), made.ID()
}

func grant(role string, keyspaces ...string) catalog.Grant {
	return catalog.Grant{Role: role, Keyspaces: keyspaces}
}

// TestIdentify checks the life of a token:
//
//  1. while it exists, it identifies its user, and no other text does;
//  2. after it was revoked, or its user was deleted, the next call is refused;
//  3. it expires;
//  4. it is refused if the last proof of the users is older than trustMax, and before the first
//     proof.
func TestIdentify(t *testing.T) {
	c := newFakeCluster()
	a := authorizerOf(t, Enforce, c)
	web, id := tokenOf(t, c, "web", 0, grant("writer", "posts"))
	short, _ := tokenOf(t, c, "short", time.Minute, grant("reader", "*"))
	began := a.proved.Load().at
	now := began.Add(time.Second)
	proved := func(at, wall time.Time) { a.proved.Store(&proof{at, wall.Round(0)}) }
	want := func(what string, token []byte, at time.Time, name string, why Refusal) {
		t.Helper()
		caller, got := a.Identify(token, at)
		if got != why || caller != nil && caller.Name != name || (caller == nil) != (name == "") {
			t.Errorf("%s: %+v, %v, want %q, %v", what, caller, got, name, why)
		}
	}
	want("the token", web, now, "web", Granted)
	want("no token", nil, now, "", NoToken)
	want("a long text", []byte(strings.Repeat("x", 1<<20)), now, "", BadToken)
	for _, wrong := range []string{"ctd_", "ctd_k1_", "ctd_k1", string(web[:len(web)-1]), string(web) + "0", strings.Replace(string(web), "ctd_", "CTD_", 1),
		strings.Replace(string(web), "k1", "k2", 1), string(web[:len(web)-1]) + "x", "ctd_k1_" + strings.Repeat("0", 64)} {
		want(wrong, []byte(wrong), now, "", BadToken)
	}
	want("before it expires", short, now, "short", Granted)
	want("after it expired", short, now.Add(2*time.Minute), "", Unproven)
	proved(began.Add(2*time.Minute), began.Add(2*time.Minute))
	want("after it expired", short, now.Add(2*time.Minute), "", Expired)
	proved(began, began)
	want("long after the proof", web, began.Add(trustMax+1), "", Unproven)
	want("right before", web, began.Add(trustMax), "web", Granted)
	proved(began, began.Add(-trustMax))
	want("after the machine was suspended", web, now, "", Unproven)
	proved(began.Add(-trustMax), began)
	want("after the clock was set back", web, now, "", Unproven)
	a.proved.Store(nil)
	want("before a proof", web, now, "", Unproven)
	proved(began, began)

	caller, _ := a.Identify(web, now)
	if _, why := a.Still(caller, now); why != Granted {
		t.Errorf("still: %v", why)
	}
	if _, err := RemoveToken(t.Context(), c, "web", id); err != nil {
		t.Fatal(err)
	}
	want("a revoked token", web, now, "", BadToken)
	if _, why := a.Still(caller, now); why != BadToken {
		t.Errorf("the caller of a revoked token: %v", why)
	}
	if _, _, err := DeleteUser(t.Context(), c, "short"); err != nil {
		t.Fatal(err)
	}
	want("the token of a deleted user", short, now, "", BadToken)
}

func TestIdentifyAllocatesNothing(t *testing.T) {
	c := newFakeCluster()
	a := authorizerOf(t, Enforce, c)
	web, _ := tokenOf(t, c, "web", 0, grant("writer", "posts"))
	wrong := []byte("ctd_k1_" + strings.Repeat("0", 64))
	now := time.Now()
	keyspace := []byte("posts")
	need := Need{Access: Write, In: InPath}
	n := testing.AllocsPerRun(100, func() {
		caller, why := a.Identify(web, now)
		if why != Granted || !caller.Allows(&need, keyspace) || caller.Take(Requests, 1, now) > 0 {
			t.Fatal(why)
		}
		if _, why := a.Identify(wrong, now); why != BadToken {
			t.Fatal(why)
		}
	})
	if n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestRolesAreHeldToKeyspaces(t *testing.T) {
	c := newFakeCluster()
	a := authorizerOf(t, Enforce, c)
	token, _ := tokenOf(t, c, "web", 0, grant("reader", "posts", "users"), grant("ingest", "posts"))
	caller, _ := a.Identify(token, time.Now())
	for _, one := range []struct {
		access   Access
		keyspace string
		may      bool
	}{
		{Read, "posts", true}, {Read, "users", true}, {Read, "unread", false},
		{Ingest, "posts", true}, {Ingest, "users", false}, {Write, "posts", false}, {Status, "posts", false}, {Admin, "posts", false},
	} {
		if got := caller.May(one.access, []byte(one.keyspace)); got != one.may {
			t.Errorf("access %d on %s: %v", one.access, one.keyspace, got)
		}
	}
	if _, _, err := PutUser(t.Context(), c, "web", catalog.UserRights{Grants: []catalog.Grant{grant("writer", "*")}}, nil); err != nil {
		t.Fatal(err)
	}
	caller, _ = a.Still(caller, time.Now())
	if !caller.May(Write, []byte("unread")) || caller.May(Admin, nil) {
		t.Error("new grants do not hold at once")
	}
	zero := Need{}
	if caller.Allows(&zero, nil) || (*Caller)(nil).Allows(&zero, nil) {
		t.Error("a call without a need is allowed")
	}
	if several := Read.On("unread", "feed"); !caller.Allows(&several, nil) {
		t.Error("all keyspaces do not include these")
	}
}

func TestBadUsersAreRefused(t *testing.T) {
	c := newFakeCluster()
	good := []catalog.Grant{grant("reader", "posts")}
	for _, one := range []struct {
		field  string
		name   string
		grants []catalog.Grant
		limits catalog.UserLimits
	}{
		{"name", "", good, catalog.UserLimits{}}, {"name", "a b", good, catalog.UserLimits{}}, {"name", strings.Repeat("x", 65), good, catalog.UserLimits{}},
		{"name", "root", good, catalog.UserLimits{}}, {"name", "default", good, catalog.UserLimits{}},
		{"grants", "web", nil, catalog.UserLimits{}}, {"grants", "web", slices.Repeat(good, 65), catalog.UserLimits{}},
		{"grants[0].role", "web", []catalog.Grant{grant("owner", "posts")}, catalog.UserLimits{}},
		{"grants[0].role", "web", []catalog.Grant{grant("", "posts")}, catalog.UserLimits{}},
		{"grants[1].keyspaces", "web", []catalog.Grant{good[0], grant("writer")}, catalog.UserLimits{}},
		{"grants[0].keyspaces[1]", "web", []catalog.Grant{grant("writer", "posts", "posts")}, catalog.UserLimits{}},
		{"grants[0].keyspaces[0]", "web", []catalog.Grant{grant("writer", "")}, catalog.UserLimits{}},
		{"grants[0].keyspaces", "web", []catalog.Grant{grant("admin", "posts")}, catalog.UserLimits{}},
		{"grants[0].keyspaces", "web", []catalog.Grant{{Role: "metrics", Keyspaces: []string{}}}, catalog.UserLimits{}},
		{"limits.requests_per_second", "web", good, catalog.UserLimits{Requests: -1}},
		{"limits.ops_per_second", "web", good, catalog.UserLimits{Ops: LimitMax + 1}},
		{"limits.connections_per_second", "web", good, catalog.UserLimits{Connections: -1}},
	} {
		_, _, err := PutUser(t.Context(), c, one.name, catalog.UserRights{Grants: one.grants, Limits: one.limits}, nil)
		if bad, ok := errors.AsType[*FieldError](err); !ok || bad.Field != one.field {
			t.Errorf("%+v: %v", one, err)
		}
	}
	if len(c.Catalog().UsersByName()) > 0 {
		t.Error("a bad user was stored")
	}
}

// TestUsersChangedAtOnce checks that a change is refused if somebody else has changed the user
// since the caller read it, and that a repeated change is not refused.
func TestUsersChangedAtOnce(t *testing.T) {
	c := newFakeCluster()
	put := func(name string, grants, was []catalog.Grant) error {
		_, _, err := PutUser(t.Context(), c, name, catalog.UserRights{Grants: grants}, &catalog.UserRights{Grants: was})
		return err
	}
	reader, both := []catalog.Grant{grant("reader", "posts")}, []catalog.Grant{grant("reader", "posts"), {Role: "metrics"}}
	for i, step := range []struct {
		name        string
		grants, was []catalog.Grant
		want        error
	}{
		{"web", reader, reader, ErrNoUser},
		{"web", reader, nil, nil},
		{"web", both, nil, ErrUserChanged},
		{"web", both, reader, nil},
		{"web", both, reader, nil}, // a repeat
		{"web", []catalog.Grant{grant("writer", "posts")}, reader, ErrUserChanged},
		{"web", reader, []catalog.Grant{grant("reader", "posts"), {Role: "metrics"}}, nil},
	} {
		if err := put(step.name, step.grants, step.was); !errors.Is(err, step.want) {
			t.Errorf("step %d: %v, want %v", i, err, step.want)
		}
	}
	bad, ok := errors.AsType[*FieldError](put("web", reader, []catalog.Grant{grant("owner", "posts")}))
	if !ok || bad.Field != "was.grants[0].role" {
		t.Errorf("a bad role: %v", bad)
	}
	_, _, err := PutUser(t.Context(), c, "web", catalog.UserRights{Grants: reader}, &catalog.UserRights{Limits: catalog.UserLimits{Ops: -1}})
	if bad, ok := errors.AsType[*FieldError](err); !ok || bad.Field != "was.limits.ops_per_second" {
		t.Errorf("a bad limit: %v", err)
	}
}

// TestTokensMadeAtOnce checks that tokens made at the same time have different ids, and that
// each works.
func TestTokensMadeAtOnce(t *testing.T) {
	c := newFakeCluster()
	a := authorizerOf(t, Enforce, c)
	tokenOf(t, c, "web", 0, grant("reader", "posts"))
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			_, text, _, err := AddToken(t.Context(), c, "web", time.Hour)
			if err != nil {
				t.Error(err)
			} else if _, why := a.Identify([]byte(text), a.proved.Load().at); why != Granted {
				t.Error(why)
			}
		})
	}
	wg.Wait()
}

func TestLimits(t *testing.T) {
	c := newFakeCluster()
	a := authorizerOf(t, Enforce, c)
	token, _ := tokenOf(t, c, "web", 0, grant("writer", "posts"))
	if _, _, err := PutUser(t.Context(), c, "web", catalog.UserRights{Grants: []catalog.Grant{grant("writer", "posts")}, Limits: catalog.UserLimits{Requests: 10, Ops: 100}}, nil); err != nil {
		t.Fatal(err)
	}
	now := a.proved.Load().at
	caller, _ := a.Identify(token, now)
	for i := range 10 {
		if wait := caller.Take(Requests, 1, now); wait > 0 {
			t.Fatalf("request %d waits %v", i, wait)
		}
	}
	if wait := caller.Take(Requests, 1, now); wait <= 0 || wait > 100*time.Millisecond {
		t.Errorf("request 11 waits %v", wait)
	}
	if caller.Take(Requests, 1, now.Add(101*time.Millisecond)) > 0 {
		t.Error("a tenth of a second later there is no room")
	}
	if caller.Take(Ops, 1, now) > 0 {
		t.Error("the first batch is refused")
	}
	caller.Owe(Ops, 999, now) // the batch has 1,000 ops, one of which Take has counted
	if wait := caller.Take(Ops, 1, now); wait < 8*time.Second || wait > 10*time.Second {
		t.Errorf("after ten seconds' worth of ops it waits %v", wait)
	}
	if caller.Take(Ops, 1, now.Add(10*time.Second)) > 0 {
		t.Error("the debt is never paid")
	}
	if caller.Take(Connections, 1_000_000, now) > 0 {
		t.Error("a limit that is not set holds")
	}
	// A change of a user that does not change the limits keeps the used part of the limits.
	if _, _, _, err := AddToken(t.Context(), c, "web", time.Hour); err != nil {
		t.Fatal(err)
	}
	caller, _ = a.Identify(token, now)
	for range 9 {
		caller.Take(Requests, 1, now)
	}
	if caller.Take(Requests, 1, now) == 0 {
		t.Error("another token makes the limit new")
	}
	series := make(chan prometheus.Metric, 16)
	userMetrics{a}.Collect(series)
	if close(series); len(series) != 2 || a.mu.limiters["web"].refused[Ops].Load() != 1 {
		t.Errorf("%d series, %d calls beyond the limit of ops", len(series), a.mu.limiters["web"].refused[Ops].Load())
	}
}

// TestDebtsOfBatchesAtOnce checks that concurrent batches, which together owe more than any single
// batch, do not clear the debt of a user.
func TestDebtsOfBatchesAtOnce(t *testing.T) {
	c := newFakeCluster()
	a := authorizerOf(t, Enforce, c)
	token, _ := tokenOf(t, c, "web", 0, grant("writer", "posts"))
	if _, _, err := PutUser(t.Context(), c, "web", catalog.UserRights{Grants: []catalog.Grant{grant("writer", "posts")}, Limits: catalog.UserLimits{Ops: 1}}, nil); err != nil {
		t.Fatal(err)
	}
	caller, _ := a.Identify(token, a.proved.Load().at)
	if caller.Take(Ops, 1, a.proved.Load().at) > 0 {
		t.Fatal("the first op is refused")
	}
	for range 3 {
		caller.Owe(Ops, 9_999, a.proved.Load().at)
	}
	if wait := caller.Take(Ops, 1, a.proved.Load().at); wait < 3*time.Hour || wait > owedMax {
		t.Errorf("after 30,000 ops at one a second it waits %v", wait)
	}
}

func TestRootToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "root")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	logger := slog.New(slog.DiscardHandler)
	open := func() (*Authorizer, error) {
		return New(Config{Mode: Enforce, RootToken: path, Registry: prometheus.NewRegistry(), Logger: logger})
	}
	if _, err := open(); err == nil {
		t.Error("a missing file is taken")
	}
	for _, bad := range []string{"", "short", strings.Repeat("x", 31), strings.Repeat("x", 513), strings.Repeat("x", 20) + " " + strings.Repeat("x", 20)} {
		write(bad)
		if _, err := open(); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	first, second := strings.Repeat("x", 32), "ctd_k1_"+strings.Repeat("0", 64)
	write(first + "\n")
	a, err := open()
	if err != nil {
		t.Fatal(err)
	}
	caller, why := a.Identify([]byte(first), time.Now())
	if why != Granted || caller.Name != RootName || !caller.May(Admin, nil) || !caller.May(Write, []byte("posts")) {
		t.Fatalf("%+v, %v", caller, why)
	}
	if _, why := a.Identify([]byte(second), time.Now()); why != Unproven {
		t.Errorf("another token: %v", why)
	}
	write("bad")
	if err := a.root.load(logger); err == nil {
		t.Error("a bad file is no error")
	}
	if _, why := a.Identify([]byte(first), time.Now()); why != Granted {
		t.Errorf("after a bad file: %v", why)
	}
	write(second)
	if err := a.root.load(logger); err != nil {
		t.Error(err)
	}
	if _, why := a.Identify([]byte(first), time.Now()); why != BadToken {
		t.Errorf("the old token: %v", why)
	}
	if _, why := a.Still(caller, time.Now()); why != BadToken {
		t.Errorf("the caller with the old token: %v", why)
	}
	if _, why := a.Identify([]byte(second), time.Now()); why != Granted {
		t.Errorf("the new token: %v", why)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := a.root.load(logger); err != nil {
		t.Error(err)
	}
	if _, why := a.Identify([]byte(second), time.Now()); why == Granted {
		t.Error("the token outlives its file")
	}
	if err := a.root.load(logger); err != nil {
		t.Errorf("later, without the file: %v", err)
	}
	write(first)
	if err := a.root.load(logger); err != nil {
		t.Error(err)
	}
	if _, why := a.Identify([]byte(first), time.Now()); why != Granted {
		t.Errorf("a new file: %v", why)
	}
	if got := a.Mask("a " + first + " and " + second); got != "a … and ctd_k1_…" {
		t.Errorf("masked: %s", got)
	}
}
