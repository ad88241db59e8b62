package knowledge

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/schemas/id"
)

const (
	// seenFor is how long the number of a large base's chunks is believed. Counting those of 50,000
	// documents takes longer than the rest of a search, and the number only tells how rare words are.
	seenFor = 5 * time.Second
	// maxSeen bounds the numbers that are kept.
	maxSeen = 1000
	// fewChunks is how many chunks a search compares one by one instead of asking the index of words, which
	// names those of the whole base. A viewer who may see a small part of a large base (1 of fewOf) may see
	// more: the search costs what the viewer may see, and tells nothing of the rest by its time.
	fewChunks = 500
	fewOf     = 8
)

// seen keeps how many chunks of large bases each viewer may see.
type seen struct {
	mu sync.Mutex // guards the field below
	at map[seenAt]seenChunks
}

type seenAt struct {
	tenant id.TenantID
	base   id.KnowledgeBaseID
	viewer string
}

type seenChunks struct {
	chunks int64
	until  time.Time
}

// count returns how many chunks the viewer may see, and how many there are. Of a base that is large for the
// viewer, from large chunks on, the second number may be too small.
func (s *seen) count(ctx context.Context, tx pgx.Tx, q *Query, large int64) (chunks, every int64, err error) {
	k := seenAt{q.Tenant, q.Base, strings.Join(q.Viewer, "\x00")}
	s.mu.Lock()
	known, ok := s.at[k]
	s.mu.Unlock()
	if ok && time.Now().Before(known.until) {
		return known.chunks, known.chunks, nil
	}
	if err := tx.QueryRow(ctx, q.sql().visible, q.Tenant, q.Base, q.Viewer).Scan(&chunks, &every); err != nil || chunks <= large {
		return chunks, every, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.at) >= maxSeen || s.at == nil {
		s.at = map[seenAt]seenChunks{}
	}
	s.at[k] = seenChunks{chunks, time.Now().Add(seenFor)}
	return chunks, every, nil
}
