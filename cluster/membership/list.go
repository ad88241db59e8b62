package membership

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/schemas/id"
)

// seen is a row of members as one look saw it.
type seen struct {
	ID         id.MemberID
	Address    string
	Version    string
	Draining   bool
	Lease      time.Duration
	LeaseUntil time.Time
	Dead       bool
	Clock      time.Time
}

func (s seen) renewed() time.Time { return s.LeaseUntil.Add(-s.Lease) }

// told is what was told of the list.
type told struct {
	members  []Member
	draining bool
}

// look reads the rows and keeps the list of the living. One look is under way at
// a time, so a later list is a newer one.
func (m *Membership) look(ctx context.Context) ([]seen, error) {
	if err := enter(ctx, m.looking); err != nil {
		return nil, err
	}
	defer leave(m.looking)
	return m.lookBy(ctx, m.pool)
}

// Look reads the list anew: Members has whoever had joined when it was called.
func (m *Membership) Look(ctx context.Context) error {
	_, err := m.look(ctx)
	return err
}

// lookBy looks through db; nobody else looks meanwhile. A look that does not find
// the own row changes nothing: the beat finds out why.
func (m *Membership) lookBy(ctx context.Context, db querier) ([]seen, error) {
	rows, err := db.Query(ctx, queries.Get("look"))
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[seen])
	if err != nil {
		return nil, err
	}
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

// same reports whether two lists differ in nothing but when leases end.
func same(a, b []Member) bool {
	return slices.EqualFunc(a, b, func(x, y Member) bool {
		x.LeaseUntil, y.LeaseUntil = time.Time{}, time.Time{}
		return x == y
	})
}

// drop forgets refusals of who is no member any more.
func (m *Membership) drop(list []Member) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for who := range m.refused {
		if !slices.ContainsFunc(list, func(o Member) bool { return o.ID == who }) {
			delete(m.refused, who)
		}
	}
}

// survey looks, and hands on whom to mark dead. It also reads Postgres' clock, closer
// than a beat can, which waits for a commit.
func (m *Membership) survey(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Lease/3)
	defer cancel()
	sent := time.Now()
	all, err := m.look(ctx)
	if err != nil {
		return // the beat says what is wrong; the list stays
	}
	received := time.Now()
	m.clock.measured(sent, received, all[0].Clock, false)
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
	default: // the marker is at work; the next look finds them again
	}
}

// teller tells the changes, one at a time.
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

// tell tells what has changed since the last time.
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
