package main

import (
	"context"
	"errors"
	"sync"
	"testing"

	"agentsvc/cluster"
	"agentsvc/cluster/clustertest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/transport/browser"
)

// fakeRecorder is the recorder of one node, which knows who has a session. Each was begun by the call with the key "first".
type fakeRecorder struct {
	mu       sync.Mutex // guards sessions
	sessions map[id.RecorderSessionID]string
}

func (f *fakeRecorder) serve(_ context.Context, _ id.MemberID, m any) (any, error) {
	q := m.(msg.Record)
	f.mu.Lock()
	defer f.mu.Unlock()
	if q.Do == msg.RecordHeld {
		for _, p := range f.sessions {
			if p == q.Principal {
				return msg.Recorded{Held: q.Key != "first", Begun: q.Key == "first"}, nil
			}
		}
		return msg.Recorded{}, nil
	}
	if q.Do == msg.RecordStart {
		for s, p := range f.sessions {
			if p == q.Principal {
				return msg.Recorded{Session: []byte(s.String())}, nil
			}
		}
		f.sessions[id.RecorderSessionID{UUID: id.New(q.Home.Shard())}] = q.Principal
		return msg.Recorded{}, nil
	}
	if f.sessions[q.Session] != q.Principal {
		return nil, problem.New(problem.CodeBrowserSkillNotFound, "none")
	}
	return msg.Recorded{Session: []byte(`{}`), JPEG: []byte{0xff, 0xd8, 0}}, nil
}

// A recorder session is found from every node, also after its shard has moved, and a principal
// has one in the whole cluster.
func TestRecorderSessionsAreFoundFromEveryNode(t *testing.T) {
	t.Parallel()
	fabric := clustertest.NewFabric(wireCodec())
	var nodes []*cluster.Node
	fakes := map[id.MemberID]*fakeRecorder{}
	for range 3 {
		f := &fakeRecorder{sessions: map[id.RecorderSessionID]string{}}
		n := fabric.Join(t, func(n *cluster.Node) { n.Serve(browser.RecorderService, f.serve) })
		nodes, fakes[n.Member()] = append(nodes, n), f
	}
	fabric.Know(t)
	members := fabric.Members()
	answer := func(n *cluster.Node, q msg.Record) (*msg.Recorded, error) {
		return browser.Finder{Peers: n, Living: func() []id.MemberID { return members }}.Record(t.Context(), &q)
	}
	ask := func(n *cluster.Node, q msg.Record) error {
		_, err := answer(n, q)
		return err
	}
	is := func(err error, code problem.Code) bool { return errors.Is(err, problem.New(code, "")) }
	home := id.NewAnywhere()
	owner := nodes[0].Owner(home.Shard())
	if err := ask(nodes[0], msg.Record{Do: msg.RecordStart, Home: home, Principal: "user:a"}); err != nil || len(fakes[owner].sessions) != 1 {
		t.Fatal(err)
	}
	var session id.RecorderSessionID
	for s := range fakes[owner].sessions {
		session = s
	}
	var other *cluster.Node
	for _, n := range nodes {
		if err := ask(n, msg.Record{Do: msg.RecordRead, Session: session, Principal: "user:a"}); err != nil {
			t.Error(err)
		}
		if err := ask(n, msg.Record{Do: msg.RecordRead, Session: session, Principal: "user:b"}); !is(err, problem.CodeBrowserSkillNotFound) {
			t.Errorf("another person's: %v", err)
		}
		if n.Member() != owner {
			other = n
		}
	}
	// The shard has moved since: the session is where its page is.
	delete(fakes[owner].sessions, session)
	fakes[other.Member()].sessions[session] = "user:a"
	for _, n := range nodes {
		if err := ask(n, msg.Record{Do: msg.RecordPicture, Session: session, Principal: "user:a"}); err != nil {
			t.Error("after a move: ", err)
		}
		if err := ask(n, msg.Record{Do: msg.RecordStart, Home: home, Principal: "user:a"}); !is(err, problem.CodeInUse) {
			t.Errorf("a second session after a move: %v", err)
		}
		again, err := answer(n, msg.Record{Do: msg.RecordStart, Home: home, Principal: "user:a", Key: "first"})
		if err != nil || string(again.Session) != session.String() || len(fakes[owner].sessions) != 0 {
			t.Errorf("the call that began it, repeated after a move: %+v %v", again, err)
		}
	}
	var third *cluster.Node
	for _, n := range nodes {
		if n.Member() != owner && n != other {
			third = n
		}
	}
	fabric.Kill(other)
	if err := ask(third, msg.Record{Do: msg.RecordRead, Session: session, Principal: "user:a"}); !is(err, problem.CodeUnavailable) {
		t.Errorf("a node that does not answer: %v", err)
	}
}
