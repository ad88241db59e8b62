package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/cluster/membership"
	"agentsvc/cluster/revocation"
	"agentsvc/persistence/pg"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
	"agentsvc/transport/edge"
	"agentsvc/transport/edge/sse"
	"agentsvc/transport/egress"
	"agentsvc/transport/mcp"
	"agentsvc/transport/platform"
	"agentsvc/transport/toolbox"
)

// revokingNode is what of a node has to do with revocations: its lease, its
// caches and its open streams.
type revokingNode struct {
	t      *testing.T
	r      *revocation.Revoker
	auth   *platform.Auth
	member *membership.Membership
	lease  *pg.Pool
	server *edge.Server
	addr   string
	opened chan struct{} // a stream is open

	outdated outdated
}

// outdated notes which tenants' commits are outdated.
type outdated struct {
	mu  sync.Mutex
	of  []id.TenantID
	all int
	err error
}

func (o *outdated) Outdate(_ context.Context, t id.TenantID) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.of = append(o.of, t)
	return o.err
}

func (o *outdated) OutdateAll(context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all++
	return o.err
}

func (o *outdated) seen() (of []id.TenantID, all int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.of), o.all
}

const revokingLease = 6 * time.Second

type silentReader struct{ opened chan struct{} }

func (s silentReader) Attach(*edge.Conn) { s.opened <- struct{}{} }
func (s silentReader) Gone()             {}

// nextDoor carries calls to the node next door while it works.
type nextDoor struct {
	to   *revokingNode
	lost atomic.Bool
}

func (w *nextDoor) Call(ctx context.Context, to id.MemberID, service string, m any) (any, error) {
	if w.lost.Load() || w.to == nil || to != w.to.member.Member() || service != revocation.Service {
		return nil, errors.New("lost")
	}
	return w.to.r.Serve(ctx, to, m)
}

func newRevokingNode(t *testing.T, db *pgtest.DB, keys *vault.Vault, w *nextDoor) *revokingNode {
	t.Helper()
	self := id.MemberID{UUID: id.NewAnywhere()}
	log := zerolog.New(zerolog.NewTestWriter(t))
	n := &revokingNode{t: t, r: revocation.New(self, revokingLease, log), lease: db.Pool(t, pg.Options{Role: pg.System}), opened: make(chan struct{}, 1)}
	var err error
	n.member, err = membership.Join(t.Context(), n.lease, membership.Config{Member: self, Address: "127.0.0.1:1", Lease: revokingLease, Log: log, OnRevoked: n.r.OnRevoked})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.member.Leave(context.WithoutCancel(t.Context())) }) // its connections may be gone
	n.r.Join(n.member, w)

	tables, trusted := store.New(db.API(t), keys), revocation.Trusts(n.member, revokingLease)
	var server *edge.Server
	gateway := mcp.New(mcp.Config{Guard: egress.New(egress.Config{}), Log: log})
	t.Cleanup(func() { gateway.Close(context.WithoutCancel(t.Context())) })
	sessions := platform.NewSessions(platform.SessionsConfig{Store: tables, Live: trusted})
	n.auth = platform.NewAuth(platform.AuthConfig{Keys: platform.StoredKeys(tables), Sessions: sessions, Live: trusted})
	p := platform.New(platform.Config{Store: tables, Auth: n.auth, Sessions: sessions, Tools: toolbox.New(toolbox.Config{Gateway: gateway}), Live: trusted, Revoker: n.r,
		Revoked: func(_ context.Context, tenant id.TenantID, key id.KeyID) error {
			server.CloseWhere(func(o sse.Owner) bool { return o.Tenant == tenant && o.Key == key })
			return nil
		}})
	table := edge.NewTable()
	edge.HandleStream(table, edge.Route{Method: "GET", Path: "/watch", ID: "watch", Summary: "Watch", Role: lifecycle.RoleMember},
		func(context.Context, *edge.Caller, *struct{}) (edge.Subscriber, error) {
			return silentReader{n.opened}, nil
		})
	edge.Handle(table, edge.Route{Method: "GET", Path: "/ask", ID: "ask", Summary: "Ask", Role: lifecycle.RoleMember},
		func(context.Context, *edge.Caller, *struct{}) (*edge.Empty, error) { return nil, nil })
	if server, err = edge.NewServer(edge.Config{Table: table, Auth: n.auth, Classify: platform.Classify, DrainWindow: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.server = server
	n.addr = "http://" + ln.Addr().String()
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	t.Cleanup(func() {
		if err := errors.Join(server.Shutdown(context.WithoutCancel(t.Context())), <-served); err != nil {
			t.Error(err)
		}
	})
	n.r.Bind(remembered{p, server, n.lease, &n.outdated})
	if err := n.r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.r.Stop)
	return n
}

func (n *revokingNode) get(path string, of *store.Created) *http.Response {
	n.t.Helper()
	return n.getWith(path, "Authorization", "Bearer "+of.Secret, "X-Tenant-Id", of.Tenant.String())
}

// getWith requests a path with header pairs.
func (n *revokingNode) getWith(path string, header ...string) *http.Response {
	n.t.Helper()
	req, err := http.NewRequestWithContext(n.t.Context(), http.MethodGet, n.addr+path, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// Two nodes on one Postgres: whatever becomes of the word between them, nobody
// accepts a key after the answer of its revocation, and its streams are cut.
func TestARevocationOverTwoNodes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		disturb func(w *nextDoor, other *revokingNode)
		atMost  time.Duration // loosely: a busy machine is no fault
		streams bool          // are cut by then
	}{
		"the word arrives": {func(*nextDoor, *revokingNode) {}, time.Minute, true},
		"the word is lost": {func(w *nextDoor, _ *revokingNode) { w.lost.Store(true) }, revocation.AtMost(revokingLease), true},
		"the other node is cut off from everybody": {func(w *nextDoor, other *revokingNode) {
			w.lost.Store(true)
			other.lease.Close()
		}, revocation.AtMost(revokingLease), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, keys := pgtest.New(t), vault.New(vault.NewSecret32([32]byte{1}))
			mine, theirs := &nextDoor{}, &nextDoor{}
			a, b := newRevokingNode(t, db, keys, mine), newRevokingNode(t, db, keys, theirs)
			mine.to, theirs.to = b, a
			sys := store.System(db.System(t), keys)
			party, err := sys.CreateTenant(t.Context(), store.NewTenant{Name: "T", OwnerEmail: "o@example.com", KeyName: "k"})
			if err != nil {
				t.Fatal(err)
			}
			spare, err := sys.CreateTenant(t.Context(), store.NewTenant{Name: "U", OwnerEmail: "o@example.com", KeyName: "k"})
			if err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "both nodes know both", func() bool { return len(a.member.Members()) == 2 && len(b.member.Members()) == 2 })
			stream := b.get("/watch", party)
			<-b.opened
			b.get("/watch", spare)
			<-b.opened
			for _, n := range []*revokingNode{a, b} {
				for _, of := range []*store.Created{party, spare} {
					if got := n.get("/ask", of); got.StatusCode != 204 {
						t.Fatal(got.Status)
					}
				}
			}
			creds := edge.Credentials{Bearer: party.Secret, Tenant: party.Tenant.String()}
			testkit.Eventually(t, "the other node remembers the key", func() bool {
				_, err := b.auth.Authenticate(t.Context(), creds)
				return err == nil && b.auth.Cached(creds)
			})

			c.disturb(mine, b)
			if err := sys.Change(t.Context(), store.By{Tenant: party.Tenant, Actor: "system"}, func(ctx context.Context, tx *store.Tx) ([]byte, error) {
				return nil, tx.RevokeKey(ctx, party.Key)
			}); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if err := a.r.Revoke(t.Context(), msg.Revoked{What: msg.RevokedKey, Tenant: party.Tenant, Key: party.Key}); err != nil {
				t.Fatal(err)
			}
			took := time.Since(began)
			for _, n := range []*revokingNode{a, b} {
				if n.auth.Cached(creds) {
					t.Error("the key is remembered")
				}
				if got := n.get("/ask", party); got.StatusCode != 401 {
					t.Errorf("the key is answered %s", got.Status)
				}
			}
			t.Logf("confirmed after %v", took)
			if took > c.atMost {
				t.Errorf("it took %v", took)
			}
			if !c.streams { // the node has lost its lease: nothing can be cut there before it is back
				return
			}
			if _, err := io.ReadAll(stream.Body); err != nil {
				t.Errorf("the stream: %v", err)
			}
			if got := b.get("/ask", spare); got.StatusCode != 204 {
				t.Errorf("another key: %s", got.Status)
			}
			if n := b.server.Streams(); n != 1 {
				t.Errorf("%d streams are open, of another key's one", n)
			}
		})
	}
}

// A user gets another role, and the other node is not told: its beat notices that a change was
// missed, and the streams that show what the former role may see end. Those of other users stay.
func TestAChangedRoleThatIsNotTold(t *testing.T) {
	t.Parallel()
	db, keys := pgtest.New(t), vault.New(vault.NewSecret32([32]byte{1}))
	lost, theirs := &nextDoor{}, &nextDoor{}
	lost.lost.Store(true)
	a, b := newRevokingNode(t, db, keys, lost), newRevokingNode(t, db, keys, theirs)
	lost.to, theirs.to = b, a
	sys := store.System(db.System(t), keys)
	party, err := sys.CreateTenant(t.Context(), store.NewTenant{Name: "T", OwnerEmail: "o@example.com", KeyName: "k"})
	if err != nil {
		t.Fatal(err)
	}
	change := func(fn func(ctx context.Context, tx *store.Tx) error) {
		t.Helper()
		if err := sys.Change(t.Context(), store.By{Tenant: party.Tenant, Actor: "system"}, func(ctx context.Context, tx *store.Tx) ([]byte, error) { return nil, fn(ctx, tx) }); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "both nodes know both", func() bool { return len(a.member.Members()) == 2 && len(b.member.Members()) == 2 })
	users, streams := map[string]id.UserID{}, map[string]*http.Response{}
	for _, name := range []string{"kim", "lee"} {
		var cookie string
		change(func(ctx context.Context, tx *store.Tx) error {
			u, err := tx.CreateUser(ctx, store.NewUser{Email: name + "@example.com", Name: name, Role: lifecycle.RoleAdmin})
			if err != nil {
				return err
			}
			users[name] = u.ID
			token, ok, err := tx.CreateSession(ctx, u.ID, nil, "password", time.Now())
			if err == nil && !ok {
				err = errors.New("no session")
			}
			cookie = token.Text()
			return err
		})
		streams[name] = b.getWith("/watch", "Cookie", "svc_session="+cookie)
		<-b.opened
	}
	change(func(ctx context.Context, tx *store.Tx) error {
		role := lifecycle.RoleMember
		_, err := tx.UpdateUser(ctx, users["kim"], lifecycle.RoleOwner, store.UserChange{Role: &role})
		return err
	})
	if err := a.r.Revoke(t.Context(), msg.Revoked{What: msg.ChangedUser, Tenant: party.Tenant, User: users["kim"]}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(streams["kim"].Body); err != nil {
		t.Error(err)
	}
	if n := b.server.Streams(); n != 1 {
		t.Errorf("%d streams are open, of the other user one", n)
	}
}

// A change of a webhook endpoint is answered when no node writes a commit any more that was
// decided on the former endpoints, also where the other node is not told and where this one cannot
// say so.
func TestAChangedEndpointOutdatesCommits(t *testing.T) {
	t.Parallel()
	db, keys := pgtest.New(t), vault.New(vault.NewSecret32([32]byte{1}))
	mine, theirs := &nextDoor{}, &nextDoor{}
	a, b := newRevokingNode(t, db, keys, mine), newRevokingNode(t, db, keys, theirs)
	mine.to, theirs.to = b, a
	tenant := pgtest.Tenant(t, db.System(t))
	testkit.Eventually(t, "both nodes know both", func() bool { return len(a.member.Members()) == 2 && len(b.member.Members()) == 2 })
	what := msg.Revoked{What: msg.ChangedWebhook, Tenant: tenant}
	if err := a.r.Revoke(t.Context(), what); err != nil {
		t.Fatal(err)
	}
	for name, n := range map[string]*revokingNode{"this node": a, "the other node": b} {
		if of, all := n.outdated.seen(); !slices.Equal(of, []id.TenantID{tenant}) || all != 0 {
			t.Errorf("at %s the commits of %v are outdated, and %d times all", name, of, all)
		}
	}
	mine.lost.Store(true)
	if err := a.r.Revoke(t.Context(), what); err != nil {
		t.Fatal(err)
	}
	if _, all := b.outdated.seen(); all == 0 {
		t.Error("the other node, which was not told, has not outdated its commits")
	}
	a.outdated.mu.Lock()
	a.outdated.err = errors.New("a flush hangs")
	a.outdated.mu.Unlock()
	if err := a.r.Revoke(t.Context(), what); !errors.Is(err, problem.New(problem.CodeUnavailable, "")) {
		t.Errorf("while a flush hangs, the change is answered %v", err)
	}
}
