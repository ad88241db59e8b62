package journal

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
)

// fate is what the database shows about one operation.
type fate int

const (
	open     fate = iota // nothing: it can be sent
	replay               // another used its key
	exists               // its entity was begun by another
	conflict             // another moved its entity on
	done                 // its own rows exist, from an earlier call
)

// answer returns the answer to the caller of an operation whose fate is known.
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

// fates reads the fate of each operation of the batch from the database. An operation
// counts as written only if a row names it as its last operation: the ids of its other rows
// may belong to an order that another operation has carried out.
func (l *lane) fates(ctx context.Context, batch []*entry) ([]fate, error) {
	found := make([]fate, len(batch))
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
			v = Values{of: w, cols: values} // values of other columns are dropped
			row.Put(&v)
		})
	}
	for at, b := range asked {
		if b == nil {
			continue
		}
		w := l.w.schema.writes[at]
		err := l.ask(ctx, w, b, func(ord int, written bool) {
			is := w.found
			if written {
				is = done
			}
			found[ord] = max(found[ord], is)
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// place is the first parameter of a query that settles: the index in the flush.
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

// settle finds out, over a new connection, whether the lane's last flush was committed: whether
// its row in flushes exists. The old backend has ended by then, so a row that does not exist
// will not appear. With synchronous replication it returns when the standby has the row; until
// then it repeats. ok is false if the context of Stop ended before.
//
// The transaction's id would be no evidence. The answer with the id may be lost with the
// connection, and after a crash of the server the same id may belong to another transaction,
// which was committed.
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

// dropLosers answers the entries of the batch that have lost, and those whose rows exist from
// an earlier call, and returns the others. missed, if not nil, is known to have missed.
func (l *lane) dropLosers(batch []*entry, missed *entry) ([]*entry, error) {
	ctx, cancel := context.WithTimeout(l.w.hard, settleTime)
	defer cancel()
	fates, err := l.fates(ctx, batch)
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

// refuse answers a commit that the database refuses. Its fate is read first: its rows may
// exist from an earlier call, and if another owner has changed the entity it is a conflict,
// whichever error the database met first.
func (l *lane) refuse(one []*entry, cause error) error {
	ctx, cancel := context.WithTimeout(l.w.hard, settleTime)
	defer cancel()
	fates, err := l.fates(ctx, one)
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
