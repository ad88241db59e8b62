//go:build failpoints

package thread_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"agentsvc/persistence/failpoint"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
)

// job is what the process that dies is to do.
type job struct {
	URL     string        `json:"url"`
	Tenant  id.TenantID   `json:"tenant"`
	Visitor store.Visitor `json:"visitor"`
	Thread  id.ThreadID   `json:"thread"`
	Post    msg.Post      `json:"post"`
	// Deletes says that the thread is deleted, and no message is sent. Post.Run ends last.
	Deletes bool    `json:"deletes"`
	Op      id.OpID `json:"op"`
}

// TestKilledAtEachPoint kills the process that accepts a message of a visitor, which
// begins a thread or goes on in one, at every commit boundary: all of it is there or
// nothing, and who sends it again is answered as the first time, once.
func TestKilledAtEachPoint(t *testing.T) {
	if todo := os.Getenv("VICTIM_JOB"); todo != "" {
		victim(t, todo)
		return
	}
	points := 0
	for _, name := range failpoint.Names() {
		if !strings.HasPrefix(name, "journal.") && !strings.HasPrefix(name, "durable.") && !strings.HasPrefix(name, "thread.") {
			continue
		}
		points++
		for what, begins := range map[string]bool{"begins": true, "goes on": false} {
			t.Run(name+" "+what, func(t *testing.T) { killedAt(t, name, begins) })
		}
	}
	if points < 7 {
		t.Errorf("only %d points are declared: void", points)
	}
}

func killedAt(t *testing.T, name string, begins bool) {
	w := newWorld(t)
	th := id.ThreadID{UUID: id.New(3)}
	post := msg.Post{Message: id.MessageID{UUID: id.New(3)}, Run: id.RunID{UUID: id.New(3)}, Visitor: w.posts(), Content: "/say hi", Input: []byte(`{"text":"/say hi"}`),
		Origin: msg.Origin{Kind: lifecycle.OriginEmbedKey, ID: w.key}, By: msg.By{Actor: w.visitor.CreatedBy}}
	before := "0"
	if begins {
		post.New = true
	} else {
		th, before = w.filled(2), "2"
	}
	w.killed(name, job{URL: w.db.URL, Tenant: w.tenant, Visitor: w.visitor, Thread: th, Post: post})
	const whole = `SELECT concat_ws(' ', (SELECT count(*) FROM threads WHERE id = $1), (SELECT count(*) FROM messages WHERE thread_id = $1 AND id = $2), (SELECT count(*) FROM runs WHERE id = $3),
		(SELECT count(*) FROM audit_log WHERE target_id = $2))`
	left := w.text(whole, th, post.Message, post.Run)
	nothing := map[bool]string{true: "0 0 0 0", false: "1 0 0 0"}[begins]
	if left != nothing && left != "1 1 1 1" {
		t.Errorf("left %s", left)
	}
	n, _ := w.start()
	for range 2 {
		if got, err := n.Ask(t.Context(), msg.KindThread, w.tenant, th.UUID, post); err != nil || got != any(msg.Posted{Run: post.Run, Message: post.Message}) {
			t.Fatal(got, err)
		}
	}
	if got := w.end(post.Run); got != "succeeded" {
		t.Error(got)
	}
	w.is("1 1 1 1", whole, th, post.Message, post.Run)
	w.is(map[string]string{"0": "2", "2": "4"}[before], `SELECT count(*)::text FROM messages WHERE thread_id = $1`, th)
	// The next one finds its place.
	if got := w.end(w.say(n, &th, "/say more").Run); got != "succeeded" {
		t.Error(got)
	}
}

// TestKilledInADeletion kills the process that deletes a thread with a run that waits for an
// approval, at every commit boundary. The thread stands as it was, or it is deleted, and then
// its runs end and none of its messages stays.
func TestKilledInADeletion(t *testing.T) {
	points := 0
	for _, name := range failpoint.Names() {
		if !strings.HasPrefix(name, "journal.") && !strings.HasPrefix(name, "durable.") {
			continue
		}
		points++
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			th, waits, queued := w.waiting()
			deletion := msg.DeleteThread{Op: id.OpID{UUID: id.New(th.Shard())}, By: msg.By{Actor: "apikey:x"}}
			w.killed(name, job{URL: w.db.URL, Tenant: w.tenant, Visitor: w.visitor, Thread: th, Post: msg.Post{Run: queued}, Deletes: true, Op: deletion.Op})
			n, _ := w.start()
			if w.text(`SELECT (deleted_at IS NULL)::text FROM threads WHERE id = $1`, th) == "true" {
				w.is("3", `SELECT count(*)::text FROM messages WHERE thread_id = $1`, th)
				if got, err := w.ask(n, th, deletion); err != nil || got != any(msg.Done{}) {
					t.Fatal(got, err)
				}
			}
			w.exec(`UPDATE timers SET due_at = now() WHERE entity_id = $1`, th)
			w.timers(n)
			for _, r := range []id.RunID{waits, queued} {
				if got := w.end(r); got != "cancelled" {
					t.Error(got)
				}
			}
			w.emptied(th)
		})
	}
	if points < 6 {
		t.Errorf("only %d points are declared: void", points)
	}
}

// killed runs the job in a process that dies at the point.
func (w *world) killed(name string, j job) {
	w.t.Helper()
	todo, err := json.Marshal(j)
	w.must(err)
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledAtEachPoint$")
	cmd.Env = append(os.Environ(), "SVC_FAILPOINT="+name, "VICTIM_JOB="+string(todo))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		w.t.Fatalf("the process was not killed: %v\n%s", err, out)
	}
	testkit.Eventually(w.t, "the dead process's backends are gone", func() bool {
		return w.text(`SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'victim'`) == "0"
	})
}

// victim is the process that dies.
func victim(t *testing.T, todo string) {
	var j job
	if err := json.Unmarshal([]byte(todo), &j); err != nil {
		t.Fatal(err)
	}
	w := worldIn(t, &pgtest.DB{URL: j.URL}, j.Tenant, j.Visitor)
	w.app = "victim"
	n, _ := w.start()
	var order any = j.Post
	if j.Deletes {
		order = msg.DeleteThread{Op: j.Op, By: msg.By{Actor: "apikey:x"}}
	}
	_, err := n.Ask(context.Background(), msg.KindThread, j.Tenant, j.Thread.UUID, order)
	w.end(j.Post.Run)
	t.Log(err)
}
