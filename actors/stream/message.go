package stream

import (
	"encoding/binary"

	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// maxMessage is the longest message that is sent to the nodes that watch a run.
// Of a longer one they are told that it was left out.
const maxMessage = 64 << 10

// messageVersion is the version of a message's head.
const messageVersion = 1

// op is what a message says.
type op byte

const (
	opFrame   op = 1 // the frame in the body was published
	opBegan   op = 2 // the live text of a step begins; the body is its number, its idx, and 1 where the relay is sent the text
	opRested  op = 3 // nobody publishes for the run now
	opLeftOut op = 4 // something too long for a message was said
)

// headLen is the length of a message without number and body.
const headLen = 2 + 16 + 16 + 8

// message is what a hub tells the hubs that mirror it. Numbers of one feed count
// from 1 without a gap.
type message struct {
	op     op
	key    key
	feed   uint64
	number uint64
	body   []byte
}

// appendHead appends everything but the body.
func (m *message) appendHead(b []byte) []byte {
	b = append(b, messageVersion, byte(m.op))
	b = append(b, m.key.tenant.UUID[:]...)
	b = append(b, m.key.run.UUID[:]...)
	b = binary.BigEndian.AppendUint64(b, m.feed)
	return binary.AppendUvarint(b, m.number)
}

// readMessage reads a message; what is of another version is not ok. The body
// is part of b.
func readMessage(b []byte) (m message, ok bool) {
	if len(b) <= headLen || b[0] != messageVersion {
		return message{}, false
	}
	m.op = op(b[1])
	copy(m.key.tenant.UUID[:], b[2:])
	copy(m.key.run.UUID[:], b[18:])
	m.feed = binary.BigEndian.Uint64(b[34:])
	number, n := binary.Uvarint(b[headLen:])
	if n <= 0 || number == 0 {
		return message{}, false
	}
	m.number, m.body = number, b[headLen+n:]
	return m, true
}

// appendBegan and readBegan are the body of opBegan. A node of the version before
// the embed relay ends it after the idx and reads it to there. What it does not say
// of the text counts as withheld: a reader of the relay has it later, in
// run.completed, and is never sent what output guardrails were to see first.
func appendBegan(b []byte, l *speech) []byte {
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(l.seq)), uint64(l.idx))
	if l.relayed {
		return append(b, 1)
	}
	return append(b, 0)
}

func readBegan(b []byte) (l *speech, ok bool) {
	seq, n := binary.Uvarint(b)
	if n <= 0 || seq == 0 {
		return nil, false
	}
	idx, k := binary.Uvarint(b[n:])
	if k <= 0 {
		return nil, false
	}
	rest := b[n+k:]
	return &speech{seq: int64(seq), idx: int(idx), relayed: len(rest) > 0 && rest[0] == 1}, true
}

// Service is the name under which a node answers Watch (Hubs.ServeWatch).
const Service = "watch"

// Watch is what a node asks another about runs that it reads and the other one
// publishes for. The parts are done in the order End, Begin, Renew.
type Watch struct {
	End   []uint64     `json:"end,omitempty"`   // feeds that it does not read any more
	Begin []WatchedRun `json:"begin,omitempty"` // runs that it reads from now on
	Renew []uint64     `json:"renew,omitempty"` // feeds that it still reads
}

// WatchedRun names a run.
type WatchedRun struct {
	Tenant id.TenantID `json:"tenant"`
	Run    id.RunID    `json:"run"`
}

// Watched is the answer to Watch.
type Watched struct {
	// Begun are the snapshots of the first runs of Begin; the rest is to be asked
	// for again.
	Begun []Snapshot `json:"begun,omitempty"`
	// Renewed has for each of Renew the number of its last message plus one, or 0
	// where there is no such feed any more.
	Renewed []uint64 `json:"renewed,omitempty"`
}

// Snapshot is a run's hub at one moment: everything that is said later is sent
// as the messages of Feed after Number.
type Snapshot struct {
	Feed   uint64    `json:"feed"`
	Number uint64    `json:"number"`
	Owned  bool      `json:"owned,omitempty"` // somebody publishes for the run
	Pos    event.Pos `json:"pos"`
	Live   *LiveStep `json:"live,omitempty"`
}

// LiveStep is a step that is being spoken.
type LiveStep struct {
	Seq      int64   `json:"seq"`
	Idx      int     `json:"idx"`
	Said     []byte  `json:"said,omitempty"`
	Segments []int32 `json:"segments,omitempty"`
	// Relayed says that the relay is sent the text: as in opBegan, not unless the
	// node says so.
	Relayed bool `json:"relayed,omitempty"`
}

// AddTo lets Watch and its answer cross nodes.
func AddTo(c *msg.Codec) {
	c.Add("watch", Watch{})
	c.Add("watched", Watched{})
}
