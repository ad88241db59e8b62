package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
)

// fate is what the rows say about one operation.
type fate int

const (
	open     fate = iota // nothing: it may be sent
	conflict             // another moved its entity on
	replay               // another used its key, whatever its entity does
	done                 // its rows are there, whatever else is
)

// answer is what the caller of an operation is told whose fate is known.
func (f fate) answer() error {
	switch f {
	case conflict:
		return ErrConflict
	case replay:
		return ErrReplay
	}
	return nil
}

// look asks the database for the fates of batch. trustSealed also takes an
// idempotency row with the very same sealed response as a sign of the operation:
// right after a commit of unknown outcome, when the operation was the only one
// that could have written it.
func (l *lane) look(ctx context.Context, batch []*entry, trustSealed bool) ([]fate, error) {
	fates := make([]fate, len(batch))
	note := func(otherwise fate) func(ord int, written bool) {
		return func(ord int, written bool) {
			found := otherwise
			if written {
				found = done
			}
			fates[ord] = max(fates[ord], found)
		}
	}
	begun := newBulk("settle_thread_inserts", tInt4, tUUID, tUUID, tUUID)
	threads := newBulk("settle_threads", tInt4, tUUID, tUUID, tInt8, tInt8, tUUID)
	updates := newBulk("settle_run_updates", tInt4, tUUID, tUUID, tInt8, tInt8, tUUID)
	approvals := newBulk("settle_approvals", tInt4, tUUID, tUUID, tInt8, tInt8, tUUID)
	inserts := newBulk("settle_run_inserts", tInt4, tUUID, tUUID, tUUID)
	keys := newBulk("settle_idempotency", tInt4, tUUID, tBytes, tBytes, tBytes)
	messages := newBulk("settle_messages", tInt4, tUUID, tUUID, tInt8, tUUID)
	usage := newBulk("settle_usage", tInt4, tUUID, tUUID)
	audit := newBulk("settle_audit", tInt4, tUUID, tUUID)
	for ord, e := range batch {
		c := e.c
		row := func(b *bulk) []column {
			b.rows++
			b.cols[0].int4(ord)
			b.cols[1].uuid(c.Tenant.UUID)
			return b.cols[2:]
		}
		if t := c.NewThread; t != nil {
			col := row(begun)
			col[0].uuid(t.ID.UUID)
			col[1].uuid(c.Op.UUID)
		}
		if t := c.Thread; t != nil {
			col := row(threads)
			col[0].uuid(t.ID.UUID)
			col[1].int8(t.Version)
			col[2].int8(t.Epoch)
			col[3].uuid(c.Op.UUID)
		}
		if u := c.Run; u != nil {
			col := row(updates)
			col[0].uuid(u.ID.UUID)
			col[1].int8(u.Version)
			col[2].int8(u.Epoch)
			col[3].uuid(c.Op.UUID)
		}
		if a := c.Approval; a != nil {
			col := row(approvals)
			col[0].uuid(a.ID.UUID)
			col[1].int8(a.Version)
			col[2].int8(a.Epoch)
			col[3].uuid(c.Op.UUID)
		}
		if n := c.Accept; n != nil {
			col := row(inserts)
			col[0].uuid(n.ID.UUID)
			col[1].uuid(c.Op.UUID)
		}
		if i := c.Idempotency; i != nil {
			col := row(keys)
			col[0].bytes(i.Digest[:])
			col[1].bytes(i.Fingerprint[:])
			col[2].bytes(i.Response)
		}
		for _, m := range c.Messages {
			col := row(messages)
			col[0].uuid(m.Thread.UUID)
			col[1].int8(m.Seq)
			col[2].uuid(m.ID.UUID)
		}
		for _, u := range c.Usage {
			row(usage)[0].uuid(u.ID.UUID)
		}
		for _, a := range c.Audit {
			row(audit)[0].uuid(a.ID.UUID)
		}
	}
	for _, q := range []struct {
		rows *bulk
		note func(int, bool)
	}{
		{begun, note(conflict)}, {threads, note(conflict)}, {updates, note(conflict)}, {approvals, note(conflict)}, {inserts, note(conflict)},
		{keys, func(ord int, written bool) { note(replay)(ord, written && trustSealed) }},
		{messages, note(open)}, {usage, note(open)}, {audit, note(open)},
	} {
		if err := l.ask(ctx, q.rows, q.note); err != nil {
			return nil, err
		}
	}
	return fates, l.lookStatements(ctx, batch, fates)
}

// ask sends one query of settle.sql.
func (l *lane) ask(ctx context.Context, b *bulk, note func(ord int, written bool)) error {
	if b.rows == 0 {
		return nil
	}
	sql := queries.Get(b.name)
	rows := l.conn.raw.PgConn().ExecParams(ctx, sql, b.finish(), nil, inBinary, inBinary)
	for rows.NextRow() {
		v := rows.Values()
		note(int(binary.BigEndian.Uint32(v[0])), v[1][0] == 1)
	}
	if _, err := rows.Close(); err != nil {
		return fmt.Errorf("%s: %w", b.name, err)
	}
	return nil
}

// lookStatements asks each swapping Statement's own question.
func (l *lane) lookStatements(ctx context.Context, batch []*entry, fates []fate) error {
	for ord, e := range batch {
		for i := range e.c.Statements {
			if s := &e.c.Statements[i]; s.Settle != "" && fates[ord] != done {
				var written *bool
				if err := l.conn.raw.QueryRow(ctx, s.Settle, e.c.Op).Scan(&written); err != nil {
					var pgErr *pgconn.PgError
					if l.conn.raw.IsClosed() || errors.As(err, &pgErr) && sortFailure(err) != refusedRows {
						return fmt.Errorf("settle a statement: %w", err)
					}
					continue // no row, or a question that the database does not understand: not written
				}
				if written != nil && *written {
					fates[ord] = done
				}
			}
		}
	}
	return nil
}

// settle finds out, over a new connection, whether the flush of batch was
// committed: its commits share one fate, so one sign is enough. The old backend
// is gone by then, so that what is not there will not come. ok is false when
// Stop's patience has ended before.
func (l *lane) settle(batch []*entry) (written, ok bool) {
	for {
		if !l.reconnect() {
			return false, false
		}
		ctx, cancel := context.WithTimeout(l.w.hard, settleTime)
		fates, err := l.look(ctx, batch, true)
		cancel()
		if err != nil {
			l.broken(err)
			continue
		}
		for _, f := range fates {
			if f == done {
				return true, true
			}
		}
		return false, true
	}
}

// dropLosers answers those of batch who can be seen to have lost, and those
// whose rows are there from an earlier call, and returns the others. Those of
// missed are known to have missed a swap.
func (l *lane) dropLosers(batch, missed []*entry) ([]*entry, error) {
	ctx, cancel := context.WithTimeout(l.w.hard, settleTime)
	defer cancel()
	fates, err := l.look(ctx, batch, false)
	if err != nil {
		return nil, err
	}
	var left []*entry
	for i, e := range batch {
		if fates[i] == open && slices.Contains(missed, e) {
			fates[i] = conflict
		}
		if fates[i] == open {
			left = append(left, e)
			continue
		}
		l.answer(e, fates[i].answer())
	}
	return left, nil
}

// refuse answers a commit that the database refuses, by what became of it: its rows
// may be there from an earlier call; and what cannot be stored beside the rows of
// another owner says nothing against the commit, which is a conflict, whatever the
// database came upon first.
func (l *lane) refuse(one []*entry, cause error) error {
	ctx, cancel := context.WithTimeout(l.w.hard, settleTime)
	defer cancel()
	fates, err := l.look(ctx, one, false)
	if err != nil {
		return err
	}
	if fates[0] == open {
		l.answerAll(one, fmt.Errorf("%w: %w", ErrRefused, cause))
	} else {
		l.answerAll(one, fates[0].answer())
	}
	return nil
}
