package sweep

import (
	"context"
	"errors"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/feed"
)

// What is looked at and erased at most in one look.
const (
	erasePeople = 500
	eraseBatch  = 200 // of entities of a kind, each with a few dozen rows
)

const (
	// settledAfter is how long ago an entity of a deleted end user has ended
	// before it is erased: what its actor still owed is done by then, as a rule.
	settledAfter = 5 * time.Second
	// peopleAge is how long the row of a deleted end user is kept: longer than a post
	// that was judged before is under way.
	peopleAge = time.Hour
	// lateDeletion is longer than a deletion of an end user is under way.
	lateDeletion = 10 * time.Minute
	// toldAfter is how much time entities have that were told to end, where there are more
	// of them.
	toldAfter = time.Second
)

// part is one part of a look. It stands for itself, so that one which is cut short, or
// fails, is made good by a later look, on any node.
type part struct {
	kind  durable.Traits
	lost  bool // tells what its actors end first; else erases what has ended
	batch int  // how much it takes: less after it has failed
}

// erasure is where the looks at what deleted end users left behind stand.
type erasure struct {
	from  feed.Person  // where a round begins: nobody who was deleted before is left
	anew  time.Time    // when a round begins with the first of all again
	after feed.Person  // those up to this one were looked at in this round
	first *feed.Person // who was found first in this round
	last  feed.Person  // who was found last of all, and when that was
	found time.Time
	left  bool // in this round: not everything that was there was taken
	parts []part
	all   []*feed.Erasure
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

// newErasure has a part for everything that a kind says goes with a person. What is lost is
// told first.
func newErasure(kinds []durable.Traits) (e erasure) {
	for _, lost := range []bool{true, false} {
		for _, k := range kinds {
			if k.Erase != nil && (!lost || k.Erase.Lost != nil) {
				e.parts = append(e.parts, part{kind: k, lost: lost, batch: eraseBatch})
			}
		}
	}
	for _, k := range kinds {
		if k.Erase != nil {
			e.all = append(e.all, k.Erase)
		}
	}
	return e
}

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

// erase looks at some deleted end users (docs/adr/0027): their entities are ended by their
// actors, which ends what runs in them, and what has ended is erased. It returns how much
// that was, and how long to rest.
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
	var errs []error
	if len(people) > 0 {
		for i := range e.parts {
			p := &e.parts[i]
			limit, got := p.batch, 0
			err := bounded(ctx, func(ctx context.Context) (err error) {
				if p.lost {
					got, err = s.endLost(ctx, p.kind, people, limit)
				} else {
					got, err = s.cfg.Rows.Erase(ctx, p.kind.Erase, people, limit, settledAfter)
				}
				return err
			})
			if err != nil {
				p.batch = max(limit/2, 1)
			} else {
				p.batch = min(2*limit, eraseBatch)
			}
			errs = append(errs, err)
			if got == limit {
				if e.left = true; p.lost {
					rest = max(rest, toldAfter)
				}
			}
			if !p.lost {
				n += got
			}
		}
		errs = append(errs, bounded(ctx, func(ctx context.Context) error {
			gone, err := s.cfg.Rows.ErasePeople(ctx, e.all, people, peopleAge)
			n += gone
			return err
		}))
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
	if err := errors.Join(errs...); err != nil {
		return n, s.cfg.EraseEvery, err
	}
	return n, rest, nil
}

// endLost ends up to limit entities of the people by their actors, where those live here.
// They are found again until they have ended.
func (s *Sweep) endLost(ctx context.Context, k durable.Traits, people []feed.Person, limit int) (int, error) {
	lost, err := s.cfg.Rows.Lost(ctx, k.Erase, people, s.cfg.Node.Shards(), limit)
	for _, l := range lost {
		if s.cfg.Node.Owns(l.ID.Shard()) {
			s.cfg.Node.Tell(cluster.Address{Kind: k.Name, Tenant: l.Tenant, ID: l.ID}, k.End(l.ID))
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
