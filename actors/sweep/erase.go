package sweep

import (
	"context"
	"errors"
	"time"

	"agentsvc/cluster"
	"agentsvc/persistence/feed"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// What is looked at and erased at most in one look.
const (
	erasePeople = 500
	eraseBatch  = 200 // of threads and of runs, each with a few dozen rows
)

const (
	// settledAfter is how long ago a run or a thread of a deleted end user has ended
	// before it is erased: what its actor still owed is done by then, as a rule.
	settledAfter = 5 * time.Second
	// peopleAge is how long the row of a deleted end user is kept: longer than a post
	// that was judged before is under way.
	peopleAge = time.Hour
	// lateDeletion is longer than a deletion of an end user is under way.
	lateDeletion = 10 * time.Minute
	// toldAfter is how much time threads have that were told, where there are more of
	// them.
	toldAfter = time.Second
)

// Parts of a look.
const (
	tellThreads = iota
	eraseRuns
	eraseThreads
	eraseParts
)

// erasure is where the looks at what deleted end users left behind stand.
type erasure struct {
	from  feed.Person  // where a round begins: nobody who was deleted before is left
	anew  time.Time    // when a round begins with the first of all again
	after feed.Person  // those up to this one were looked at in this round
	first *feed.Person // who was found first in this round
	last  feed.Person  // who was found last of all, and when that was
	found time.Time
	left  bool            // in this round: not everything that was there was taken
	batch [eraseParts]int // how much a part takes: less after it has failed
}

// end ends a round. The next one begins where this one found somebody: entries of erased
// people stay in the index until it is vacuumed, and are not read again.
func (e *erasure) end(now time.Time) {
	switch {
	case e.first != nil: // deletions that commit late may be before
		e.from, e.found = feed.Person{DeletedAt: e.first.DeletedAt.Add(-lateDeletion)}, now
	case now.Sub(e.found) >= lateDeletion:
		e.from = e.last
	}
	switch {
	case e.anew.IsZero():
		e.anew = now.Add(anewEvery)
	case !now.Before(e.anew):
		e.from, e.anew = feed.Person{}, now.Add(anewEvery)
	}
	e.after, e.first, e.left = e.from, nil, false
}

func newErasure() erasure { return erasure{batch: [eraseParts]int{eraseBatch, eraseBatch, eraseBatch}} }

// erasing looks again and again at what deleted end users left behind. It rests from the
// end of a look: one that takes long makes no other come sooner.
func (s *Sweep) erasing(ctx context.Context) {
	next := time.NewTimer(0)
	defer next.Stop()
	var failing trouble
	for {
		select {
		case <-next.C:
		case <-ctx.Done():
			return
		}
		n, rest, err := s.erase(ctx)
		rowsErased.Add(float64(n))
		if ctx.Err() != nil {
			return
		}
		failing.note(s.cfg.Log, "erasure of deleted end users", err)
		next.Reset(rest)
	}
}

// eraser is on whose behalf threads of deleted end users are deleted.
var eraser = msg.By{Actor: "system"}

// erase looks at some deleted end users (docs/adr/0027): their threads are deleted by
// their actors, which ends what runs in them, and what has ended is erased. It says how
// much that was, and how long to rest. Each part stands for itself, so that one which is
// cut short, or fails, is made good by a later look, on any node.
func (s *Sweep) erase(ctx context.Context) (n int, rest time.Duration, err error) {
	if s.cfg.Suspended() {
		return 0, s.cfg.EraseEvery, nil
	}
	e := &s.erasure
	var people []feed.Person
	if err := bounded(ctx, func(ctx context.Context) (err error) {
		people, err = s.cfg.Rows.DeletedPeople(ctx, e.after, erasePeople)
		return err
	}); err != nil {
		return 0, s.cfg.EraseEvery, err
	}
	rest = s.cfg.Every
	var errs [eraseParts + 1]error
	if len(people) > 0 {
		for i, part := range [eraseParts]func(ctx context.Context, limit int) (int, error){
			tellThreads: func(ctx context.Context, limit int) (int, error) {
				told, err := s.tellLost(ctx, people, limit)
				if told == limit {
					rest = max(rest, toldAfter)
				}
				return told, err
			},
			eraseRuns: func(ctx context.Context, limit int) (int, error) {
				return s.cfg.Rows.EraseRuns(ctx, people, limit, settledAfter)
			},
			eraseThreads: func(ctx context.Context, limit int) (int, error) {
				return s.cfg.Rows.EraseThreads(ctx, people, limit, settledAfter)
			},
		} {
			limit, got := e.batch[i], 0
			errs[i] = bounded(ctx, func(ctx context.Context) (err error) {
				got, err = part(ctx, limit)
				return err
			})
			if errs[i] != nil {
				e.batch[i] = max(limit/2, 1)
			} else {
				e.batch[i] = min(2*limit, eraseBatch)
			}
			if got == limit {
				e.left = true
			}
			if i != tellThreads {
				n += got
			}
		}
		errs[eraseParts] = bounded(ctx, func(ctx context.Context) error {
			gone, err := s.cfg.Rows.ErasePeople(ctx, people, peopleAge)
			n += gone
			return err
		})
	}
	if len(people) > 0 {
		if e.first == nil {
			e.first = &people[0]
		}
		e.after = people[len(people)-1]
		e.last = e.after
	}
	if len(people) < erasePeople {
		if !e.left {
			rest = s.cfg.EraseEvery
		}
		e.end(s.cfg.Now())
	}
	if err := errors.Join(errs[:]...); err != nil {
		return n, s.cfg.EraseEvery, err
	}
	return n, rest, nil
}

// tellLost deletes up to limit threads of the people by their actors, where those live
// here. They are found again until they are gone.
func (s *Sweep) tellLost(ctx context.Context, people []feed.Person, limit int) (int, error) {
	lost, err := s.cfg.Rows.LostThreads(ctx, people, s.cfg.Node.Shards(), limit)
	for _, l := range lost {
		if s.cfg.Node.Owns(l.Thread.Shard()) {
			s.cfg.Node.Tell(cluster.Address{Kind: msg.KindThread, Tenant: l.Tenant, ID: l.Thread.UUID},
				msg.DeleteThread{Op: id.OpID{UUID: id.New(l.Thread.Shard())}, By: eraser})
		}
	}
	return len(lost), err
}

// bounded gives a part of a look as long as a page takes at most.
func bounded(ctx context.Context, part func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	return part(ctx)
}
