package journal

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
)

// fate is what the rows say about one operation.
type fate int

const (
	open     fate = iota // nothing: it may be sent
	replay               // another used its key
	exists               // its entity was begun by another
	conflict             // another moved its entity on
	done                 // its own rows are there, from an earlier call
)

// answer is what the caller of an operation is told whose fate is known.
func (f fate) answer() error {
	switch f {
	case conflict:
		return ErrConflict
	case exists:
		return ErrExists
	case replay:
		return ErrReplay
	}
	return nil
}

// look asks the database for the fates of batch, each operation by itself. An
// operation counts as written only where a row names it as its last operation: the ids
// of its other rows may belong to an order that another operation has carried out.
func (l *lane) look(ctx context.Context, batch []*entry) ([]fate, error) {
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
	keys := newBulk("settle_idempotency", tInt4, tUUID, tBytes)
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
			row(keys)[0].bytes(i.Digest[:])
		}
	}
	for _, q := range []struct {
		rows *bulk
		note func(int, bool)
	}{
		{begun, note(exists)}, {threads, note(conflict)}, {updates, note(conflict)}, {approvals, note(conflict)}, {inserts, note(exists)},
		{keys, note(replay)},
	} {
		if err := l.ask(ctx, q.rows, q.note); err != nil {
			return nil, err
		}
	}
	return fates, nil
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

// settle finds out, over a new connection, whether the lane's last flush was committed:
// the flush has left its row or it has not. The old backend is gone by then, so a row that
// is not there will not come. ok is false when Stop's patience has ended before.
//
// The transaction's id would be no evidence. The answer that carries it may be lost with
// the connection, and after a crash of the server the same id may belong to another
// transaction, which was committed.
func (l *lane) settle() (written, ok bool) {
	for {
		if !l.reconnect() {
			return false, false
		}
		ctx, cancel := context.WithTimeout(l.w.hard, settleTime)
		err := l.conn.raw.QueryRow(ctx, queries.Get("settle_flush"), l.uid, l.sent).Scan(&written)
		cancel()
		if err == nil {
			return written, true
		}
		l.broken(fmt.Errorf("settle a flush: %w", err))
	}
}

// dropLosers answers those of batch who can be seen to have lost, and those
// whose rows are there from an earlier call, and returns the others. Those of
// missed are known to have missed a swap.
func (l *lane) dropLosers(batch, missed []*entry) ([]*entry, error) {
	ctx, cancel := context.WithTimeout(l.w.hard, settleTime)
	defer cancel()
	fates, err := l.look(ctx, batch)
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
	fates, err := l.look(ctx, one)
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
