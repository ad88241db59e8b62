package platform

import (
	"context"
	"crypto/subtle"
	"sync"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/apikey"
	"agentsvc/schemas/id"
)

const (
	// strangersRest is the pause after each round of look-ups. It limits guesses to 40
	// queries a second in total, and a valid key waits at most this long plus two queries.
	strangersRest = 25 * time.Millisecond
	// strangersMost limits the look-ups that one query answers.
	strangersMost = 1024
	// seenFor is how long the secret of an accepted key or session is recognised.
	seenFor = 6 * time.Hour
)

// StrangeKeys looks up keys that this node has not seen, many callers' keys with one query.
func StrangeKeys(d *store.Directory) Keys {
	s := newStrangers(d.KeyHashes)
	return func(ctx context.Context, t id.TenantID, key id.KeyID) (apikey.Hash, bool, error) {
		return s.find(ctx, store.KeyRef{Tenant: t, Key: key})
	}
}

// StrangeSessions does the same for sessions.
func StrangeSessions(d *store.Directory) func(context.Context, id.TenantID, id.SessionID) (*store.Session, error) {
	s := newStrangers(d.Sessions)
	return func(ctx context.Context, t id.TenantID, session id.SessionID) (*store.Session, error) {
		found, _, err := s.find(ctx, store.SessionRef{Tenant: t, ID: session})
		return found, err
	}
}

// strangers looks up keys or sessions that this node has not accepted recently. Guessing
// causes such look-ups, and so do valid callers, so they are batched: one query at a time
// answers all that wait, with a pause after each. Others' look-ups never cause a refusal.
type strangers[K comparable, V any] struct {
	read func(ctx context.Context, keys []K) (map[K]V, error)

	mu      sync.Mutex // guards the fields below
	next    []*round[K, V]
	running bool // a goroutine runs the rounds; it ends after the last one
}

// round is a batch of look-ups that one query answers. found and err are written before done
// is closed.
type round[K comparable, V any] struct {
	keys  map[K]struct{}
	done  chan struct{}
	found map[K]V
	err   error
}

func newStrangers[K comparable, V any](read func(context.Context, []K) (map[K]V, error)) *strangers[K, V] {
	return &strangers[K, V]{read: read}
}

// find looks up k. The query begins after the call.
func (s *strangers[K, V]) find(ctx context.Context, k K) (v V, ok bool, err error) {
	r := s.join(k)
	select {
	case <-r.done:
		v, ok = r.found[k]
		return v, ok, r.err
	case <-ctx.Done():
		return v, false, ctx.Err()
	}
}

func (s *strangers[K, V]) join(k K) *round[K, V] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.next); n == 0 || len(s.next[n-1].keys) >= strangersMost {
		s.next = append(s.next, &round[K, V]{keys: map[K]struct{}{}, done: make(chan struct{})})
	}
	r := s.next[len(s.next)-1]
	r.keys[k] = struct{}{}
	if !s.running {
		s.running = true
		go s.run()
	}
	return r
}

// run answers rounds until none is left.
func (s *strangers[K, V]) run() {
	for {
		s.mu.Lock()
		if len(s.next) == 0 {
			s.running = false
			s.mu.Unlock()
			return
		}
		r := s.next[0]
		s.next = s.next[1:]
		s.mu.Unlock()
		s.answer(r)
		time.Sleep(strangersRest)
	}
}

func (s *strangers[K, V]) answer(r *round[K, V]) {
	defer close(r.done)
	keys := make([]K, 0, len(r.keys))
	for k := range r.keys {
		keys = append(keys, k)
	}
	ctx, cancel := context.WithTimeout(context.Background(), store.Timeout)
	defer cancel()
	r.found, r.err = s.read(ctx, keys)
}

// seen holds the hashes of recently accepted secrets. A caller that presents one of them
// again does not wait behind the look-ups of strangers.
type seen[K comparable] struct{ hashes *store.Cache[K, [32]byte] }

func newSeen[K comparable](most int, now func() time.Time) seen[K] {
	return seen[K]{store.NewCache[K, [32]byte](store.CacheConfig{Max: most, TTL: seenFor, Now: now})}
}

func (s seen[K]) knows(k K, hash [32]byte) bool {
	h, ok := s.hashes.Get(k)
	return ok && subtle.ConstantTimeCompare(h[:], hash[:]) == 1
}

// forget makes a secret that is no longer accepted a stranger's. Another secret under the same
// name stays.
func (s seen[K]) forget(k K, hash [32]byte) {
	if s.knows(k, hash) {
		s.hashes.Drop(k)
	}
}
