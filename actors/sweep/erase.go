package sweep

import (
	"context"
	"errors"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/feed"
)

// Limits of one pass of the erasure.
const (
	erasePeople = 500
	eraseBatch  = 200 // of entities of a kind, each with a few dozen rows
)

const (
	// settledAfter is the time between the end of an entity and its erasure: usually its actor
	// has performed its last effects by then.
	settledAfter = 5 * time.Second
	// peopleAge is the time for which the row of a deleted end user is kept. A post that was
	// authorized before the deletion has ended by then.
	peopleAge = time.Hour
	// lateDeletion is an upper bound on the duration of a transaction that deletes an end user.
	lateDeletion = 10 * time.Minute
	// toldAfter is the rest after a pass that told a full batch of entities to end.
	toldAfter = time.Second
)

// part is one part of a pass. Parts are independent: if one is interrupted or fails, a later
// pass on any node repeats it.
type part struct {
	kind  durable.Traits
	lost  bool // tells actors to end their entities; false: erases entities that have ended
	batch int  // limit of entities, smaller after a failure
}

// erasure is the state of the passes. A round is a sequence of passes over all deleted end
// users.
type erasure struct {
	from  feed.Person  // where a round begins: everyone deleted earlier is erased
	anew  time.Time    // when a round begins with the first person of the table again
	after feed.Person  // the last person read in this round
	first *feed.Person // the first person found in this round
	last  feed.Person  // the last person found in any round, and when
	found time.Time
	left  bool // in this round a batch was full
	parts []part
	all   []*feed.Erasure
}

// end ends a round. The next one begins where this one found the first person: index entries
// of erased people stay until a vacuum, and should not be read again.
func (e *erasure) end(now time.Time) {
	switch {
	case e.first != nil: // a deletion that commits late may be earlier
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

// newErasure makes the parts of a pass from the kinds. The parts that tell actors come first.
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

// erasing runs passes of the erasure. It rests after the end of each pass, however long the
// pass took.
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

// erase runs one pass over some deleted end users (docs/adr/0027): it tells actors to end
// their entities and erases entities that have ended. It returns the number of erased
// entities and people, and the rest until the next pass.
func (s *Sweep) erase(ctx context.Context) (n int, rest time.Duration, err error) {
	if !s.cfg.Live() {
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

// endLost tells the actors of up to limit entities of the people in this node's shards to end
// them. A pass finds an entity again until it has ended.
func (s *Sweep) endLost(ctx context.Context, k durable.Traits, people []feed.Person, limit int) (int, error) {
	lost, err := s.cfg.Rows.Lost(ctx, k.Erase, people, s.cfg.Node.Shards(), limit)
	for _, l := range lost {
		if s.cfg.Node.Owns(l.ID.Shard()) {
			s.cfg.Node.Tell(cluster.Address{Kind: k.Name, Tenant: l.Tenant, ID: l.ID}, k.End(l.ID))
		}
	}
	return len(lost), err
}

// bounded runs part with the timeout of a page.
func bounded(ctx context.Context, part func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	return part(ctx)
}
