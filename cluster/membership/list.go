package membership

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/schemas/id"
)

// seen is a row of members as one read saw it.
type seen struct {
	ID         id.MemberID
	Address    string
	Version    string
	Draining   bool
	StartedAt  time.Time
	Lease      time.Duration
	LeaseUntil time.Time
	Dead       bool
	Clock      time.Time

	still time.Duration // the row certainly has not changed for so long; see watched
}

func (s seen) renewed() time.Time { return s.LeaseUntil.Add(-s.Lease) }

// told is the state last reported to the callbacks.
type told struct {
	members  []Member
	draining bool
}

// refresh reads the rows and updates the list of living members. Only one read runs at a time,
// so that a later list is a newer one.
func (m *Membership) refresh(ctx context.Context) ([]seen, error) {
	if err := enter(ctx, m.refreshing); err != nil {
		return nil, err
	}
	defer leave(m.refreshing)
	return m.refreshFrom(ctx, m.pool)
}

// Refresh reads the list again: afterwards Members includes every member that had joined before
// the call.
func (m *Membership) Refresh(ctx context.Context) error {
	_, err := m.refresh(ctx)
	return err
}

// refreshFrom reads the list through db, while the caller holds refreshing. If its own row is missing
// it changes nothing: the beat finds out why.
func (m *Membership) refreshFrom(ctx context.Context, db querier) ([]seen, error) {
	sent := time.Now()
	rows, err := db.Query(ctx, queries.Get("living"))
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[seen])
	if err != nil {
		return nil, err
	}
	m.watched(all, sent, time.Now())
	var list []Member
	self := false
	for _, s := range all {
		if !s.Dead {
			list = append(list, Member{s.ID, s.Address, s.Version, s.Draining, s.LeaseUntil})
			self = self || s.ID == m.cfg.Member
		}
	}
	if !self {
		signal(m.gone)
		return nil, errFenced
	}
	before := m.members.Swap(&list)
	if before == nil || !same(*before, list) {
		m.drop(list)
		membersAlive.Set(float64(len(list)))
		signal(m.changes)
	}
	return all, nil
}

// same reports whether two lists are equal except for the ends of leases.
func same(a, b []Member) bool {
	return slices.EqualFunc(a, b, func(x, y Member) bool {
		x.LeaseUntil, y.LeaseUntil = time.Time{}, time.Time{}
		return x == y
	})
}

// drop deletes the refusals of processes that are no longer members.
func (m *Membership) drop(list []Member) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for who := range m.refused {
		if !slices.ContainsFunc(list, func(o Member) bool { return o.ID == who }) {
			delete(m.refused, who)
		}
	}
}

// survey reads the list, and passes the members to mark dead to the marker. It also measures
// Postgres' clock, more precisely than a beat, which includes a commit.
func (m *Membership) survey(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Lease/3)
	defer cancel()
	sent := time.Now()
	all, err := m.refresh(ctx)
	if err != nil {
		return // the beat reports the error; the list stays
	}
	received := time.Now()
	m.measured(sent, received, all[0].Clock)
	if twin := m.twin(all); twin != nil && !m.beat.twin {
		m.beat.twin = true
		m.cfg.Log.Error().Stringer("member", twin.ID).Str("address", twin.Address).Msg("another living member has the address of this one")
		if m.cfg.OnTwin != nil {
			m.cfg.OnTwin()
		}
	}
	if m.cfg.Address == "" || !m.beat.mayMark(sent, received, m.cfg.Lease) {
		return
	}
	m.mu.Lock()
	due := doomed(all, m.cfg.Member, m.refused)
	m.mu.Unlock()
	if len(due) == 0 {
		return
	}
	select {
	case m.deaths <- due:
	default: // the marker is busy; the next read finds them again
	}
}

// watched notes the states of rows that one read saw, and sets for how long each row certainly has not changed. It
// counts by this process's clock from the first read of a state, which came after its holder had sent the renewal.
func (m *Membership) watched(all []seen, sent, received time.Time) {
	now := make(map[id.MemberID]state, len(all))
	for i := range all {
		s := &all[i]
		now[s.ID] = state{s.LeaseUntil, received}
		if before, ok := m.states[s.ID]; ok && before.until.Equal(s.LeaseUntil) {
			now[s.ID] = before
			s.still = sent.Sub(before.since)
		}
	}
	m.states = now
}

// state is a row as it was first seen.
type state struct {
	until time.Time // the end of its lease
	since time.Time // when a read had returned it, monotonic
}

// twin returns a living member that has the address of this one and joined before it: the others cannot tell their
// messages apart. A former process of this address renews no more, except by a beat that was sent before its end.
func (m *Membership) twin(all []seen) *seen {
	own := slices.IndexFunc(all, func(s seen) bool { return s.ID == m.cfg.Member })
	if m.cfg.Address == "" || own < 0 {
		return nil
	}
	joined := all[own].StartedAt
	for i, s := range all {
		if i != own && !s.Dead && s.Address == m.cfg.Address && s.renewed().After(joined.Add(m.cfg.Lease/2)) &&
			(s.StartedAt.Before(joined) || s.StartedAt.Equal(joined) && i < own) {
			return &all[i]
		}
	}
	return nil
}

// teller calls the callbacks, one at a time.
func (m *Membership) teller(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.changes:
			m.tell()
		}
	}
}

// tell reports what has changed since the last call.
func (m *Membership) tell() {
	list := m.Members()
	i := slices.IndexFunc(list, func(o Member) bool { return o.ID == m.cfg.Member })
	if on := list[i].Draining; on != m.told.draining {
		m.told.draining = on
		m.cfg.Log.Info().Bool("draining", on).Msg("draining changed")
		if m.cfg.OnDrain != nil {
			m.cfg.OnDrain(on)
		}
	}
	if same(list, m.told.members) {
		return
	}
	m.told.members = list
	m.cfg.Log.Info().Int("members", len(list)).Msg("members changed")
	if m.cfg.OnMembers != nil {
		m.cfg.OnMembers(slices.Clone(list))
	}
}
