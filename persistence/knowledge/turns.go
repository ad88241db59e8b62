package knowledge

import (
	"context"
	"sync"
	"time"

	"agentsvc/schemas/id"
)

const (
	// scansEach is how many searches of a tenant compare vectors at a time: each holds a connection,
	// for long if its vectors are not in memory.
	scansEach = 4
	// scanPatience is how long a search waits for its turn before it goes by words only.
	scanPatience = time.Second
)

// turns bounds the searches of a tenant that compare vectors.
type turns struct {
	patience time.Duration

	mu sync.Mutex // guards the field below
	at map[id.TenantID]*queue
}

// queue is a tenant's places, while a search has or wants one.
type queue struct {
	places chan struct{}
	users  int
}

// enter waits for a place. It reports false if there is none in time; else the caller calls leave.
func (s *turns) enter(ctx context.Context, t id.TenantID) bool {
	s.mu.Lock()
	q := s.at[t]
	if q == nil {
		q = &queue{places: make(chan struct{}, scansEach)}
		s.at[t] = q
	}
	q.users++
	s.mu.Unlock()
	late := time.NewTimer(s.patience)
	defer late.Stop()
	select {
	case q.places <- struct{}{}:
		return true
	case <-late.C:
	case <-ctx.Done():
	}
	s.forget(t, q)
	return false
}

func (s *turns) leave(t id.TenantID) {
	s.mu.Lock()
	q := s.at[t]
	s.mu.Unlock()
	<-q.places
	s.forget(t, q)
}

func (s *turns) forget(t id.TenantID, q *queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.users--; q.users == 0 {
		delete(s.at, t)
	}
}
