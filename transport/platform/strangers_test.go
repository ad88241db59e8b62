package platform

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/apikey"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
	"agentsvc/transport/edge"
)

// held is a directory of one key whose queries wait for the test to release them.
type held struct {
	k       *keyring
	queries atomic.Int64
	rows    atomic.Int64
	begun   chan struct{}
	goOn    chan struct{}
}

func (h *held) read(ctx context.Context, keys []store.KeyRef) (map[store.KeyRef]apikey.Hash, error) {
	h.queries.Add(1)
	h.rows.Add(int64(len(keys)))
	h.begun <- struct{}{}
	select {
	case <-h.goOn:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	found := map[store.KeyRef]apikey.Hash{}
	for _, r := range keys {
		if hash, ok, _ := h.k.find(ctx, r.Tenant, r.Key); ok {
			found[r] = hash
		}
	}
	return found, nil
}

// Unauthenticated look-ups share their queries. A valid key that is not cached is among them; a
// cached one does not wait for them.
func TestUnknownKeysShareTheirQueries(t *testing.T) {
	t.Parallel()
	unseen, known := newKeyring(), newKeyring()
	h := &held{k: unseen, begun: make(chan struct{}), goOn: make(chan struct{})}
	s := newStrangers(h.read)
	now := time.Unix(1000, 0)
	a := NewAuth(AuthConfig{Keys: known.find, Now: func() time.Time { return now }, Strangers: func(ctx context.Context, t id.TenantID, k id.KeyID) (apikey.Hash, bool, error) {
		if k == known.key {
			return known.find(ctx, t, k)
		}
		return s.find(ctx, store.KeyRef{Tenant: t, Key: k})
	}})
	if _, err := a.Authenticate(t.Context(), known.creds()); err != nil {
		t.Fatal(err)
	}
	a.cfg.Strangers = func(ctx context.Context, t id.TenantID, k id.KeyID) (apikey.Hash, bool, error) {
		return s.find(ctx, store.KeyRef{Tenant: t, Key: k})
	}

	const guesses = 500
	var all sync.WaitGroup
	var refused, accepted atomic.Int64
	try := func(c edge.Credentials) {
		all.Go(func() {
			if _, err := a.Authenticate(t.Context(), c); err == nil {
				accepted.Add(1)
			} else {
				refused.Add(1)
			}
		})
	}
	guess := func() edge.Credentials {
		return edge.Credentials{Bearer: apikey.Mint(id.KeyID{UUID: id.NewAnywhere()}), Tenant: unseen.tenant.String()}
	}
	try(guess())
	<-h.begun // while the first query runs, the others queue
	for range guesses {
		try(guess())
	}
	try(unseen.creds())
	testkit.Eventually(t, "all look-ups wait", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		n := 0
		for _, r := range s.next {
			n += len(r.keys)
		}
		return n == guesses+1
	})
	now = now.Add(keysFor + time.Second)
	if _, err := a.Authenticate(t.Context(), known.creds()); err != nil || known.reads != 2 {
		t.Errorf("a cached key, beside a flood: %v after %d reads", err, known.reads)
	}
	h.goOn <- struct{}{}
	<-h.begun
	h.goOn <- struct{}{}
	all.Wait()
	if refused.Load() != guesses+1 || accepted.Load() != 1 || h.queries.Load() != 2 {
		t.Errorf("%d refused, %d accepted, by %d queries of %d rows", refused.Load(), accepted.Load(), h.queries.Load(), h.rows.Load())
	}
}

// More look-ups than one query can answer wait for the next query, in order of arrival.
func TestARoundOfLookUpsIsBounded(t *testing.T) {
	t.Parallel()
	var sizes []int
	s := newStrangers(func(_ context.Context, keys []int) (map[int]int, error) {
		sizes = append(sizes, len(keys))
		return map[int]int{1: 10}, nil
	})
	s.running = true // no goroutine answers yet
	var rounds []*round[int, int]
	for i := range strangersMost + 3 {
		rounds = append(rounds, s.join(i))
	}
	s.join(strangersMost) // a second look-up of the same key
	go s.run()
	for _, r := range rounds {
		<-r.done
	}
	if len(sizes) != 2 || sizes[0] != strangersMost || sizes[1] != 3 {
		t.Errorf("rounds of %v", sizes)
	}
	if v, ok, err := s.find(t.Context(), 1); v != 10 || !ok || err != nil {
		t.Errorf("%v %v %v", v, ok, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.find(ctx, 2); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A key in use is read again before its cache entry expires, concurrently with the calls that use
// it. A key revoked meanwhile stops working. A failed read changes nothing.
func TestAKeyInUseIsRenewedBeforeItExpires(t *testing.T) {
	t.Parallel()
	k := newKeyring()
	var at atomic.Int64
	var reads, live, down atomic.Int64
	live.Store(1)
	read := make(chan struct{}, 16)
	a := NewAuth(AuthConfig{Now: func() time.Time { return time.Unix(at.Load(), 0) }, Keys: func(_ context.Context, t id.TenantID, key id.KeyID) (apikey.Hash, bool, error) {
		defer func() { read <- struct{}{} }()
		reads.Add(1)
		if down.Load() == 1 {
			return apikey.Hash{}, false, errors.New("down")
		}
		_, h, err := apikey.Parse(k.secret)
		return h, live.Load() == 1, err
	}})
	use := func(wantReads int64) {
		t.Helper()
		if _, err := a.Authenticate(t.Context(), k.creds()); err != nil {
			t.Fatalf("at %d: %v", at.Load(), err)
		}
		testkit.Eventually(t, fmt.Sprintf("at %d: %d reads", at.Load(), wantReads), func() bool { return reads.Load() == wantReads })
	}
	use(1)
	<-read
	at.Store(19)
	use(1)
	at.Store(20)
	use(2)
	<-read
	testkit.Eventually(t, "the renewed one counts", func() bool {
		live, ok := a.keys.Get(keyAt{k.tenant, k.key})
		return ok && live.at.Unix() == 40
	})
	at.Store(40)
	down.Store(1)
	use(3) // fails: the cache entry stays
	<-read
	use(3)
	down.Store(0)
	at.Store(50)
	use(4) // the call itself reads the key
	<-read
	live.Store(0)
	at.Store(75)
	if _, err := a.Authenticate(t.Context(), k.creds()); err != nil {
		t.Fatal(err)
	}
	<-read
	testkit.Eventually(t, "a key that was revoked is forgotten", func() bool { return !a.Cached(k.creds()) })
}

// A session's first look-up is shared with strangers; after its secret was accepted it has its own.
// The look-up of another secret is shared again.
func TestTheFirstLookUpOfASessionIsShared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cookie := w.enter(w.newHuman(w.a, "kim@example.com", lifecycle.RoleMember))
	var strangers atomic.Int64
	find := StrangeSessions(w.logins.Directory)
	s := NewSessions(SessionsConfig{Store: w.Store, PublicURL: console, Now: w.clock.now, Strangers: func(ctx context.Context, t id.TenantID, session id.SessionID) (*store.Session, error) {
		strangers.Add(1)
		return find(ctx, t, session)
	}})
	creds := edge.Credentials{Cookie: cookie, Method: "GET"}
	for i := range 3 {
		who, err := s.Authenticate(t.Context(), creds)
		if err != nil || who.User.IsZero() || who.Role != lifecycle.RoleMember || strangers.Load() != 1 {
			t.Fatalf("use %d: %+v %v, %d shared look-ups", i, who, err, strangers.Load())
		}
		w.clock.move(sessionsFor + time.Second)
	}
	last := cookie[:len(cookie)-4] + "AAAA"
	if _, err := s.Authenticate(t.Context(), edge.Credentials{Cookie: last, Method: "GET"}); err == nil || strangers.Load() != 2 {
		t.Errorf("another secret: %v, %d shared look-ups", err, strangers.Load())
	}
	keys := StrangeKeys(w.logins.Directory)
	for name, c := range map[string]struct {
		p  party
		ok bool
	}{"a key": {w.a, true}, "another tenant's": {party{tenant: w.b.tenant, key: w.a.key}, false}, "an unknown key": {party{tenant: w.a.tenant, key: id.KeyID{UUID: id.NewAnywhere()}}, false}} {
		if _, ok, err := keys(t.Context(), c.p.tenant, c.p.key); ok != c.ok || err != nil {
			t.Errorf("%s: %v %v", name, ok, err)
		}
	}
}

// A session or key that has ended is looked up like one that was never accepted: at most one of
// its look-ups takes a read place of its tenant.
func TestAnEndedSessionIsAStranger(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	shared := 0
	s := NewSessions(SessionsConfig{Store: w.Store, PublicURL: console, Now: w.clock.now, Strangers: func(ctx context.Context, t id.TenantID, session id.SessionID) (*store.Session, error) {
		shared++
		return w.Store.View(t).Session(ctx, session)
	}})
	for name, c := range map[string]struct {
		direct int
		forget func(h human, session id.SessionID)
	}{
		"logged out":              {0, func(h human, session id.SessionID) { s.Forget(h.tenant, session) }},
		"a new password":          {1, func(h human, _ id.SessionID) { s.ForgetUser(h.tenant, h.id) }},
		"a node that was cut off": {1, func(human, id.SessionID) { s.ForgetAll() }},
	} {
		kim := w.newHuman(w.a, fmt.Sprintf("kim%d@example.com", len(name)), lifecycle.RoleMember)
		cookie := w.enter(kim)
		token, _ := store.ParseToken(cookie)
		creds := edge.Credentials{Cookie: cookie, Method: "GET"}
		if _, err := s.Authenticate(t.Context(), creds); err != nil {
			t.Fatal(err)
		}
		w.exec("DELETE FROM sessions WHERE id = $1", token.ID)
		c.forget(kim, id.SessionID{UUID: token.ID})
		shared = 0
		for range 1000 {
			if _, err := s.Authenticate(t.Context(), creds); !isProblem(err, problem.CodeUnauthorized) {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if shared != 1000-c.direct {
			t.Errorf("%s: %d of 1000 look-ups were shared", name, shared)
		}
	}

	k := newKeyring()
	strange := 0
	a := NewAuth(AuthConfig{Keys: k.find, Strangers: func(ctx context.Context, t id.TenantID, key id.KeyID) (apikey.Hash, bool, error) {
		strange++
		return k.find(ctx, t, key)
	}})
	if _, err := a.Authenticate(t.Context(), k.creds()); err != nil {
		t.Fatal(err)
	}
	a.ForgetAll() // the node was cut off while the key was revoked
	k.live, strange = false, 0
	for range 1000 {
		if _, err := a.Authenticate(t.Context(), k.creds()); !isProblem(err, problem.CodeUnauthorized) {
			t.Fatal(err)
		}
	}
	if strange != 999 {
		t.Errorf("%d of 1000 look-ups of a revoked key were shared", strange)
	}
}
