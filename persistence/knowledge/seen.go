package knowledge

import (
	"context"
	"crypto/sha256"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/schemas/id"
)

const (
	// seenFor is how long the number of a base's chunks is believed, from seenFrom on. Counting those of 50,000
	// documents takes longer than the rest of a search, and the number only tells how rare words are.
	seenFor  = 5 * time.Second
	seenFrom = 2000
	// maxSeen bounds the numbers that are kept.
	maxSeen = 1000
	// fewChunks is how many chunks a search compares one by one instead of asking the index of words, which
	// names those of the whole base. A viewer who may see a small part of a large base (1 of fewOf) may see
	// more: the search costs what the viewer may see, and tells nothing of the rest by its time.
	fewChunks = 500
	fewOf     = 8
)

// seen keeps how many chunks of bases each viewer may see.
type seen struct {
	mu sync.Mutex // guards the field below
	at map[seenAt]seenChunks
}

type seenAt struct {
	tenant id.TenantID
	base   id.KnowledgeBaseID
	viewer [sha256.Size]byte // of its principals, which may be thousands
}

type seenChunks struct {
	chunks, every int64
	until         time.Time
}

// count returns how many chunks the viewer may see, and how many there are.
func (s *seen) count(ctx context.Context, tx pgx.Tx, q *Query) (chunks, every int64, err error) {
	k := seenAt{q.Tenant, q.Base, sha256.Sum256([]byte(strings.Join(q.Viewer, "\x00")))}
	s.mu.Lock()
	known, ok := s.at[k]
	s.mu.Unlock()
	if ok && time.Now().Before(known.until) {
		return known.chunks, known.every, nil
	}
	if err := tx.QueryRow(ctx, q.sql().visible, q.Tenant, q.Base, q.Viewer).Scan(&chunks, &every); err != nil || every < seenFrom {
		return chunks, every, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.at) >= maxSeen || s.at == nil {
		s.at = map[seenAt]seenChunks{}
	}
	s.at[k] = seenChunks{chunks, every, time.Now().Add(seenFor)}
	return chunks, every, nil
}
