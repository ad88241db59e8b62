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

// count returns how many chunks the viewer may see. A base is large from large chunks on.
func (s *seen) count(ctx context.Context, tx pgx.Tx, q *Query, large int64) (chunks int64, err error) {
	k := seenAt{q.Tenant, q.Base, strings.Join(q.Viewer, "\x00")}
	s.mu.Lock()
	known, ok := s.at[k]
	s.mu.Unlock()
	if ok && time.Now().Before(known.until) {
		return known.chunks, nil
	}
	if err := tx.QueryRow(ctx, visibleSQL, q.Tenant, q.Base, q.Viewer).Scan(&chunks); err != nil || chunks <= large {
		return chunks, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.at) >= maxSeen || s.at == nil {
		s.at = map[seenAt]seenChunks{}
	}
	s.at[k] = seenChunks{chunks, time.Now().Add(seenFor)}
	return chunks, nil
}
