package workflow

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"agentsvc/schemas/id"
)

// child returns the id of the child run of a step. It depends on the run and the step alone,
// and is in the run's shard.
func child(run id.RunID, idx int) id.RunID { return id.RunID{UUID: derived(run, "run", idx)} }

// approvalOf returns the id of the approval of a step that opens now: lists of approvals are in the
// order of their ids, and a gate may open long after its run began.
func approvalOf(run id.RunID, idx int, now time.Time) id.ApprovalID {
	a := id.ApprovalID{UUID: derived(run, "approval", idx)}
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(now.UnixMilli()))
	copy(a.UUID[:6], ms[2:])
	return a
}

func derived(run id.RunID, what string, idx int) id.UUID {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(append(run.UUID[:], what...), uint64(idx)))
	// A UUID of version 7, laid out as in package id, with the time of the run.
	u := id.UUID(sum[:16])
	copy(u[:6], run.UUID[:6])
	u[6] = 7<<4 | u[6]&0xf
	binary.BigEndian.PutUint16(u[8:], 1<<15|uint16(run.Shard())<<4|uint16(u[9]&0xf))
	return u
}
