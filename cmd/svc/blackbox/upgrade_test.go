//go:build storm

package blackbox

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentsvc/persistence/pgtest"
)

// Upgrades from an earlier commit to this source: its binary is built, and leaves the work to today's.

// earlierCommit is the last one before knowledge bases: runs of agents and workflows, approvals, triggers, webhooks
// and embed keys are there, and eight migrations are not. When a release is tagged it becomes that release.
const earlierCommit = "b1b0c6c00844889cc40d4fa8d58f2bfcf31ef024"

// earlierBinary may name a binary of that commit that is there already.
const earlierBinary = "UPGRADE_FROM"

var earlierBuild struct {
	sync.Once
	dir    string
	file   string
	schema int
	err    error
}

// earlier builds the service of that commit once, and returns it with the version of its schema.
func earlier(t *testing.T) (file string, schema int) {
	t.Helper()
	b := &earlierBuild
	binary(t)
	b.Do(func() {
		b.dir = filepath.Join(build.dir, "earlier") // TestMain removes it
		if b.err = os.Mkdir(b.dir, 0o755); b.err != nil {
			return
		}
		b.file = filepath.Join(b.dir, "svc-earlier")
		script := `git archive --format=tar "$0" | tar -x -C "$1"; cd "$1"; if [ -n "$3" ]; then cp "$3" "$2"; else go build -trimpath -o "$2" ./cmd/svc; fi`
		cmd := exec.Command("bash", "-euo", "pipefail", "-c", script, earlierCommit, b.dir, b.file, os.Getenv(earlierBinary))
		if cmd.Dir, b.err = filepath.Abs("../../.."); b.err != nil {
			return
		}
		var out []byte
		if out, b.err = cmd.CombinedOutput(); b.err != nil {
			b.err = &exec.Error{Name: strings.TrimSpace(string(out)), Err: b.err}
			return
		}
		var files []string
		files, b.err = filepath.Glob(filepath.Join(b.dir, "persistence/migrate/sql/*.up.sql"))
		b.schema = len(files)
	})
	if b.err != nil {
		t.Fatalf("build the commit %s, which must be in this clone: %v", earlierCommit, b.err)
	}
	return b.file, b.schema
}

// TestUpgradeOfOneNode stops a node of the earlier commit, in order and by kill -9, and starts today's on its data
// directory, with its private Postgres: all work goes on. In between the earlier one refuses the newer schema and changes
// nothing.
func TestUpgradeOfOneNode(t *testing.T) {
	file, _ := earlier(t)
	for name, how := range map[string]os.Signal{"in order": syscall.SIGTERM, "killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := within(t, 2*time.Minute)
			y := newYesterday(t)
			n := newNode(t, append(yesterdayEnv(), "SVC_DATA_DIR="+dataDir(t), calm)...)
			n.file, n.tool = file, file
			y.stopped(ctx, n, how)

			n.file, n.tool = "", ""
			n.start()
			if err := n.signal(how, 20*time.Second); err != nil {
				t.Fatal(err)
			}
			n.file, n.tool = file, file
			n.launch()
			select {
			case <-n.ended():
			case <-ctx.Done():
				t.Fatal("the earlier binary serves the newer schema")
			}
			const refusal = "the database is newer than this program"
			if log := n.logged(); n.exit() == 0 || !strings.Contains(log, refusal) {
				t.Errorf("the earlier binary ended with code %d: %s", n.exit(), log)
			}
			if _, stderr, code := n.run(nil, "", "tenant", "create", "--name", "x", "--owner-email", "x@example.com"); code != 1 || !strings.Contains(stderr, refusal) {
				t.Errorf("its command ended with code %d: %s", code, stderr)
			}

			n.file, n.tool = "", ""
			n.start()
			y.as(n.base)
			y.goesOn(ctx)
		})
	}
}

// TestUpgradeNodeByNode replaces the nodes of a cluster one by one while tenants are at work: in each mixture of the
// two builds all stories are told, and all laws of the storm hold. A run of a workflow that waits from before the first
// replacement until after the last one goes on.
func TestUpgradeNodeByNode(t *testing.T) {
	file, schema := earlier(t)
	b := newBed(t, 3, 6*time.Second)
	pgtest.ToVersion(t, b.pg.URL, schema)
	b.desk.tool = file
	for _, m := range b.nodes {
		m.file = file
	}
	b.start()
	l := newLoad(t, b, b.book)
	l.subscribes(t, nil)
	s := &shaker{load: l}
	y := newYesterday(t)
	waits := leftWork[slices.IndexFunc(leftWork, func(w work) bool { return w.name == allNodesWait })]
	y.prepare(within(t, time.Minute), b.client(b.desk.tenant("yesterday"), newBook()))
	n := crowd{talkers: 2, clerks: 3, tellers: 4, flows: 3, revokers: 1, stalled: 1, visitors: 2, fillers: 1}
	l.run(t, 20*time.Minute, n, func(ctx context.Context) {
		s.seen(ctx)
		waits.begin(t, ctx, y)
		y.release() // its call and its child may not wait for longer than a call may take
		for _, m := range b.nodes {
			s.settle(ctx)
			b.book.event("node %s is upgraded", m.name)
			m.file = ""
			m.term()
			m.back(ctx)
			l.mu.Lock()
			clear(l.met)
			l.mu.Unlock()
			s.seen(ctx)
		}
	})
	b.desk.tool = ""

	s.settle(within(t, time.Minute))
	waits.after(t, within(t, time.Minute), y)
	f := s.find(t)
	r := s.scene.judge(t, s.tales)
	s.flows.judgeFlows(t, s.ran)
	s.flows.flowsNotVoid(t, s.ran, true)
	s.scene.examine(r)
	f.hold(s.book, r)
	told := s.audit(t, f)
	s.book.rule(lawLives, true, "")
	s.book.report(t)
	r.report(t)
	s.book.notVoid(t, lawAccepted, lawMutating, lawCrowd, lawFinal, lawStalled, lawKeyed, lawHooks, lawRepeats, lawSecret, lawReadEnd, lawRevoked, lawSigterm, lawTurn, lawRoom, lawPlaces, lawRelay, lawForeign, lawThreads)
	r.notVoid(t)
	told.weighed(t, 0)
	for _, m := range b.nodes {
		if unread, ok := m.metric(`svc_cluster_remote_dropped_total{why="unread"}`); ok && unread > 0 {
			t.Errorf("node %s has dropped %v messages that it could not read", m.name, unread)
		}
	}
}
