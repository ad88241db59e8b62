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
	asked := make([]*bulk, len(l.rows.groups))
	var v Values
	for ord, e := range batch {
		e.c.each(func(row Row) {
			w := row.Write()
			if w.settle == "" {
				return
			}
			at := l.w.schema.places[w]
			if asked[at] == nil {
				asked[at] = newBulk(slices.Concat(place, w.known))
			}
			b := asked[at]
			b.rows++
			b.cols[0].int4(ord)
			b.cols[1].uuid(e.c.Tenant.UUID)
			values := b.cols[2:]
			if w.op {
				values[len(values)-1].uuid(e.c.Op.UUID)
				values = values[:len(values)-1]
			}
			v = Values{of: w, cols: values} // the others are dropped
			row.Put(&v)
		})
	}
	for at, b := range asked {
		if b == nil {
			continue
		}
		w := l.w.schema.writes[at]
		err := l.ask(ctx, w, b, func(ord int, written bool) {
			found := w.found
			if written {
				found = done
			}
			fates[ord] = max(fates[ord], found)
		})
		if err != nil {
			return nil, err
		}
	}
	return fates, nil
}

// place is the first parameter of a query that settles: the place in the flush.
var place = fields("ord int")

// ask sends the query that settles the rows of one write.
func (l *lane) ask(ctx context.Context, w *Write, b *bulk, note func(ord int, written bool)) error {
	rows := l.conn.raw.PgConn().ExecParams(ctx, w.settle, b.arrays(), nil, inBinary, inBinary)
	for rows.NextRow() {
		v := rows.Values()
		note(int(binary.BigEndian.Uint32(v[0])), v[1][0] == 1)
	}
	if _, err := rows.Close(); err != nil {
		return fmt.Errorf("settle %s: %w", w.name, err)
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
// whose rows are there from an earlier call, and returns the others. missed, where it is
// not nil, is known to have missed.
func (l *lane) dropLosers(batch []*entry, missed *entry) ([]*entry, error) {
	ctx, cancel := context.WithTimeout(l.w.hard, settleTime)
	defer cancel()
	fates, err := l.look(ctx, batch)
	if err != nil {
		return nil, err
	}
	var left []*entry
	for i, e := range batch {
		if fates[i] == open && e == missed {
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
