package membership

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// lookEvery is the time between two looks of a member that has peers.
const lookEvery = 250 * time.Millisecond

// beat is what the loop remembers of its beats.
type beat struct {
	forgot  int64     // the last revocation that was acted on
	sent    time.Time // when the last one that succeeded was sent
	outage  bool      // none has succeeded since one failed
	failing error     // what the last one failed with
	quiet   time.Time // until then nobody is marked dead
}

// renewed notes a success. fresh: it is the first one, or the first after an
// outage, or one that an outage has held up.
func (b *beat) renewed(sent time.Time, lease time.Duration, fresh bool) {
	now := time.Now()
	if fresh || b.outage {
		b.quiet = now.Add(lease)
	}
	b.sent, b.outage = sent, false
}

// mayMark reports whether what a look saw, sent and received then, may be acted
// on: Postgres was there for the others as it was for us.
func (b *beat) mayMark(sent, received time.Time, lease time.Duration) bool {
	return !b.outage && !received.Before(b.quiet) && received.Sub(sent) <= lease/3 && received.Sub(b.sent) <= lease/2
}

// loop beats and looks.
func (m *Membership) loop(ctx context.Context) {
	beats := time.NewTicker(m.cfg.Lease / 3)
	defer beats.Stop()
	looks := time.NewTimer(m.pause())
	defer looks.Stop()
	for {
		due := false
		select {
		case <-ctx.Done():
			return
		case <-beats.C:
			due = true
		case <-m.gone:
			due = true
		case <-looks.C:
			looks.Reset(m.pause())
			select {
			case <-beats.C: // goes first
				due = true
			default:
				if !m.beat.outage { // a server that hangs is asked by the beat alone
					m.survey(ctx)
				}
			}
		}
		if due && !m.renew(ctx) {
			return
		}
	}
}

// pause is the time to the next look. Members spread their looks.
func (m *Membership) pause() time.Duration {
	every := m.cfg.Lease / 3
	if m.cfg.Address != "" {
		every = min(lookEvery, every)
	}
	return time.Duration(float64(every) * (0.8 + 0.3*rand.Float64()))
}

// renew beats, and beats again where the first one has acted on revocations, so
// that the row says so. It returns false when there is nothing left to renew.
func (m *Membership) renew(ctx context.Context) bool {
	for range 2 {
		acted, err := m.beatOnce(ctx)
		switch {
		case ctx.Err() != nil:
			return false
		case errors.Is(err, errFenced):
			m.fenced.Store(true)
			m.quit()
			m.cfg.Log.Error().Stringer("member", m.cfg.Member).Msg("this process was declared dead")
			if m.cfg.OnFenced != nil {
				m.cfg.OnFenced()
			}
			return false
		case err != nil:
			beatsFailed.Inc()
			if m.beat.failing == nil {
				m.cfg.Log.Warn().Err(err).Msg("lease not renewed")
			}
			m.beat.failing, m.beat.outage = err, true
			m.failing.Store(true)
			return true
		}
		if m.beat.failing != nil {
			m.cfg.Log.Info().Msg("lease renewed again")
			m.beat.failing = nil
			m.failing.Store(false)
		}
		if !acted {
			return true
		}
	}
	return true
}

// beatOnce renews the lease once. It has half a lease, so that after one that
// hung there is time for another.
func (m *Membership) beatOnce(ctx context.Context) (acted bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Lease/2)
	defer cancel()
	var clock time.Time
	var counter int64
	sent := time.Now()
	err = m.pool.QueryRow(ctx, queries.Get("beat"), m.cfg.Member, m.cfg.Lease, m.beat.forgot).Scan(&clock, &counter)
	received := time.Now()
	if errors.Is(err, pgx.ErrNoRows) {
		return false, errFenced
	}
	if err != nil {
		return false, fmt.Errorf("renew the lease: %w", err)
	}
	m.clock.measured(sent, received, clock, false)
	if counter != m.beat.forgot {
		if m.cfg.OnRevoked != nil {
			if err := m.cfg.OnRevoked(ctx, counter); err != nil {
				return false, fmt.Errorf("act on revocations up to %d: %w", counter, err)
			}
		}
		m.beat.forgot, acted = counter, true
	}
	m.beat.renewed(sent, m.cfg.Lease, received.Sub(sent) > m.cfg.Lease/3)
	m.extend(sent)
	return acted, nil
}

// extend moves the deadline by a renewal that was sent at sent.
func (m *Membership) extend(sent time.Time) {
	until := sent.Add(m.cfg.Lease)
	m.deadline.Store(&until)
	signal(m.renewals)
}

// watch looks at the deadline when it has come.
func (m *Membership) watch(ctx context.Context) {
	timer := time.NewTimer(time.Until(m.Deadline()))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.renewals:
			timer.Reset(time.Until(m.Deadline()))
		case <-timer.C:
			if !m.Suspended() {
				continue // a renewal is about to say so
			}
			suspensions.Inc()
			m.cfg.Log.Warn().Stringer("member", m.cfg.Member).Msg("lease has run out, what was begun is stopped")
			if m.cfg.OnSuspended != nil {
				m.cfg.OnSuspended()
			}
		}
	}
}
