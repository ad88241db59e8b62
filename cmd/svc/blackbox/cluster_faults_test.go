//go:build storm

package blackbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// faultBy is the setting by which a binary with faults has one of them.
const faultBy = "SVC_PLANTED"

// patch replaces a text that its file has once.
type patch struct{ file, old, new string }

// defect is one of the cluster that is planted into a copy of the source.
type defect struct {
	name    string
	patches []patch
	env     []string
	does    func(s *shaker, ctx context.Context) // what brings it to light
	laws    []string                             // one of them finds it, none: whichever
	// harmless: what the defect takes away is made good elsewhere, so that no law is
	// broken.
	harmless bool
}

// bucketSize of the tenants of a bed whose buckets are looked at, and what flows in
// each second.
const bucketSize, bucketInflow = 300, 5

var smallBucket = []string{fmt.Sprint("SVC_RATE_CAPACITY=", bucketSize), fmt.Sprint("SVC_RATE_REFILL=", bucketInflow)}

var defects = []defect{
	{name: "a flush does not ask for its fence", patches: []patch{
		{"persistence/journal/flush.go", "\tp.SendQueryPrepared(prefix+\"fence\", ", "\tif !planted(\"a flush does not ask for its fence\") {\n\t\tp.SendQueryPrepared(prefix+\"fence\", "},
		{"persistence/journal/flush.go", "[][]byte{l.w.cfg.Member.UUID[:], lane, sent}, inBinary, nil)\n", "[][]byte{l.w.cfg.Member.UUID[:], lane, sent}, inBinary, nil)\n\t}\n"},
		{"persistence/journal/flush.go", "\tr.next(outcome{verdict: fenced})\n", "\tif !planted(\"a flush does not ask for its fence\") {\n\t\tr.next(outcome{verdict: fenced})\n\t}\n"},
	}, does: func(s *shaker, ctx context.Context) { s.bury(ctx, s.nodes[0]) }, laws: []string{lawBuried}},
	{name: "whoever is asked is the owner", patches: []patch{
		{"cluster/node.go", "\tif owner := n.ownerOf(a); owner != n.self {\n", "\tif owner := n.ownerOf(a); owner != n.self && (a.Kind == \"limit\" || a.Kind == \"login\" || !planted(\"whoever is asked is the owner\")) {\n"},
		{"cluster/node.go", "\tif owner != n.self {\n\t\treturn nil, owner, ErrNotOwner\n", "\tif owner != n.self && (a.Kind == \"limit\" || a.Kind == \"login\" || !planted(\"whoever is asked is the owner\")) {\n\t\treturn nil, owner, ErrNotOwner\n"},
	}, does: func(s *shaker, ctx context.Context) { pauseFor(ctx, 5*time.Second) }, harmless: true}, // the swap of the row lets one of two activations commit
	{name: "what is told to another node is lost", patches: []patch{
		{"cluster/node.go", "\t\tif err = n.peers.Tell(owner, a, m); err == nil {\n", "\t\tif planted(\"what is told to another node is lost\") {\n\t\t\treturn\n\t\t}\n\t\tif err = n.peers.Tell(owner, a, m); err == nil {\n"},
	}, does: (*shaker).rollAndKill, harmless: true},
	{name: "nobody looks for the runs of a node that has gone", patches: []patch{
		{"actors/sweep/search.go", "\terr = w.find(ctx, own)\n", "\tif w.kind != \"run\" || !planted(\"nobody looks for the runs of a node that has gone\") {\n\t\terr = w.find(ctx, own)\n\t}\n"},
	}, does: (*shaker).rollAndKill, laws: []string{lawEnds}},
	{name: "nobody looks for the workflows of a node that has gone", patches: []patch{
		{"actors/workflow/traits.go", "feed.Where(\"workflow_runs\", \"owes\")", "feed.Where(\"workflow_runs\", map[bool]string{true: \"owes AND false\", false: \"owes\"}[planted(\"nobody looks for the workflows of a node that has gone\")])"},
	}, does: (*shaker).rollAndKillOften, laws: []string{lawEnds}},
	{name: "a stream that is resumed is not filled up", patches: []patch{
		{"actors/stream/reader.go", "\tr.facts, r.cursor, r.counted, r.held = facts, c.Within(facts), true, n\n", "\tif planted(\"a stream that is resumed is not filled up\") && c.After.Seq > 0 {\n\t\tc.After = event.Pos{Seq: max(facts.Seq-1, c.After.Seq), Offset: math.MaxInt64}\n\t}\n" +
			"\tr.facts, r.cursor, r.counted, r.held = facts, c.Within(facts), true, n\n"},
	}, does: (*shaker).rollAndKillOften, laws: []string{lawStream, lawText, lawEnds}}, // a step is lost, text, or the approval that a client waits for
	{name: "a bucket begins full wherever it moves", patches: []patch{
		{"actors/limit/bucket/keeper.go", "\t\tb.merge(c, now)\n", "\t\tif !planted(\"a bucket begins full wherever it moves\") {\n\t\t\tb.merge(c, now)\n\t\t}\n"},
	}, env: smallBucket, does: (*shaker).drainAndRoll, laws: []string{lawBucket}},
	{name: "a leased token stays in its bucket", patches: []patch{
		{"actors/limit/bucket/machine.go", "\tb.credit -= l.worth()\n\tb.out += l.worth()\n\treturn ", "\tif !planted(\"a leased token stays in its bucket\") {\n\t\tb.credit -= l.worth()\n\t}\n\tb.out += l.worth()\n\treturn "},
	}, does: func(s *shaker, ctx context.Context) { pauseFor(ctx, 3*time.Second) }, laws: []string{lawAdmits}},
	{name: "half of what flows into a bucket is lost", patches: []patch{
		{"actors/limit/bucket/machine.go", "\t\tb.credit += d\n", "\t\tif planted(\"half of what flows into a bucket is lost\") {\n\t\t\tb.credit -= d / 2\n\t\t}\n\t\tb.credit += d\n"},
	}, does: func(s *shaker, ctx context.Context) { pauseFor(ctx, 10*time.Second) }, laws: []string{lawFlows}},
	{name: "Retry-After is half of what it takes", patches: []patch{
		{"actors/limit/bucket/machine.go", "\ta.retry = (max(a.retry, 1) + ", "\tif planted(\"Retry-After is half of what it takes\") {\n\t\ta.retry /= 2\n\t}\n\ta.retry = (max(a.retry, 1) + "},
	}, does: func(s *shaker, ctx context.Context) { pauseFor(ctx, 10*time.Second) }, laws: []string{lawRetry}},
	{name: "a revocation waits for no other node", patches: []patch{
		{"cluster/revocation/revocation.go", "\tif missing := r.collect(ctx, f, what, others); len(missing) > 0 {\n", "\tif planted(\"a revocation waits for no other node\") {\n\t\tothers = nil\n\t}\n\tif missing := r.collect(ctx, f, what, others); len(missing) > 0 {\n"},
	}, does: func(s *shaker, ctx context.Context) { pauseFor(ctx, time.Second) }, laws: []string{lawRevoked}},
}

// rollAndKill restarts each node, and kills two of them.
func (s *shaker) rollAndKill(ctx context.Context) {
	s.roll(ctx)
	s.kill(ctx)
	s.kill(ctx)
	s.settle(ctx)
}

// rollAndKillOften is rollAndKill with more kills: only a stream that a kill cuts between
// two steps is resumed where something is missing.
func (s *shaker) rollAndKillOften(ctx context.Context) {
	s.roll(ctx)
	for range 6 {
		s.kill(ctx)
	}
	s.settle(ctx)
}

// watchDead has the database note what nodes write that are declared dead there.
func (b *bed) watchDead() {
	b.t.Helper()
	for _, sql := range []string{
		`CREATE TABLE bed_nodes (name text PRIMARY KEY, address text NOT NULL)`,
		`CREATE TABLE bed_late (node text NOT NULL, run uuid NOT NULL)`,
		`CREATE FUNCTION bed_late() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
			IF (SELECT m.dead_at IS NOT NULL FROM public.members m JOIN public.bed_nodes n ON n.address = m.address
				WHERE n.name = current_setting('bed.node', true) ORDER BY m.started_at DESC LIMIT 1) THEN
				INSERT INTO public.bed_late VALUES (current_setting('bed.node', true), NEW.id);
			END IF; RETURN NULL; END $$`,
		`CREATE TRIGGER bed_late AFTER INSERT OR UPDATE ON runs FOR EACH ROW EXECUTE FUNCTION bed_late()`,
	} {
		if _, err := b.admin.Exec(b.t.Context(), sql); err != nil {
			b.t.Fatalf("%s: %v", sql, err)
		}
	}
	for _, m := range b.nodes {
		if _, err := b.admin.Exec(b.t.Context(), `INSERT INTO bed_nodes VALUES ($1, $2)`, m.name, m.peers.addr); err != nil {
			b.t.Fatal(err)
		}
	}
}

// bury declares a node dead that lives and works, as a peer does that is wrong
// about it. It ends, and from the declaration on it writes nothing.
func (s *shaker) bury(ctx context.Context, m *member) {
	s.scene.t.Helper()
	s.settle(ctx)
	s.busy(ctx, m)
	m.expect()
	pid := m.pid()
	death := s.disturbs()
	s.book.event("node %s is declared dead", m.name)
	if _, err := s.admin.Exec(ctx, `WITH gone AS (SELECT id FROM members WHERE address = $1 AND dead_at IS NULL FOR UPDATE)
		UPDATE members m SET dead_at = clock_timestamp() FROM gone WHERE m.id = gone.id`, m.peers.addr); err != nil {
		s.scene.t.Fatal(err)
	}
	eventually(s.scene.t, ctx, "a node that was declared dead ends", func() bool { return m.pid() != pid || !m.alive() })
	rows, err := s.admin.Query(ctx, `SELECT node || ' wrote run ' || run FROM bed_late`)
	if err != nil {
		s.scene.t.Fatal(err)
	}
	late, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		s.scene.t.Fatal(err)
	}
	s.load.book.rule(lawBuried, len(late) == 0, "%d rows, %s", len(late), strings.Join(late[:min(len(late), 3)], ", "))
	s.settle(ctx)
	s.load.book.calms(death, true)
}

// drainAndRoll takes all that is in the tenant's bucket, again and again while each
// node is restarted in order.
func (s *shaker) drainAndRoll(ctx context.Context) {
	s.scene.t.Helper()
	s.settle(ctx)
	began, admitted := time.Now(), 0
	drain := func() {
		for range 3 * bucketSize {
			a, err := s.c.do(ctx, "GET", "/v1/runs?limit=1", nil)
			switch {
			case err == nil && a.status == http.StatusTooManyRequests:
				return
			case err == nil && a.status == http.StatusOK:
				admitted++
			}
		}
	}
	drain()
	for _, m := range s.nodes {
		m.term()
		drain()
		m.begin()
		m.back(ctx)
		drain()
	}
	most := bucketSize + int(bucketInflow*time.Since(began).Seconds()) + 1
	s.load.book.rule(lawBucket, admitted <= most, "%d requests were admitted in %s, %d may be", admitted, time.Since(began), most)
}

// TestClusterDefectsApply finds each line of the service that TestClusterDefects changes.
func TestClusterDefectsApply(t *testing.T) {
	defective(t, defects)
	defective(t, skillDefects)
}

// defective returns the files of the service with some defects, by their names under root.
func defective(t *testing.T, defects []defect) (root string, texts map[string]string) {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	texts = map[string]string{}
	for _, d := range defects {
		for _, p := range d.patches {
			text, seen := texts[p.file]
			if !seen {
				b, err := os.ReadFile(filepath.Join(root, p.file))
				if err != nil {
					t.Fatal(err)
				}
				text = string(b)
			}
			if n := strings.Count(text, p.old); n != 1 {
				t.Fatalf("%s: %s has %d times the text %q", d.name, p.file, n, p.old)
			}
			texts[p.file] = strings.Replace(text, p.old, p.new, 1)
			_, clause, _ := strings.Cut("\n"+text, "\npackage ")
			name, _, _ := strings.Cut(clause, "\n")
			texts[filepath.Join(filepath.Dir(p.file), "planted.go")] = "package " + name + "\n\nimport \"os\"\n\nfunc planted(name string) bool { return os.Getenv(\"" + faultBy + "\") == name }\n"
		}
	}
	return root, texts
}

// plantAll builds the service with some defects. It has the one that the environment
// names.
func plantAll(t *testing.T, defects []defect) string {
	t.Helper()
	root, texts := defective(t, defects)
	dir := t.TempDir()
	replace := map[string]string{}
	for name, text := range texts {
		to := filepath.Join(dir, fmt.Sprint(len(replace))+".go")
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(root, name)] = to
	}
	overlay, err := json.Marshal(object{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	list, file := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "svc")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", list, "-o", file, "agentsvc/cmd/svc").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return file
}

// shaken has a load at work on three nodes of a binary while does shakes them, and
// says what the laws have found, as "law: why".
func shaken(t *testing.T, file string, env []string, does func(*shaker, context.Context)) []string {
	t.Helper()
	b := newBed(t, 3, stormLease, env...)
	for _, m := range b.nodes {
		m.file = file
	}
	b.start()
	b.watchDead()
	l := newLoad(t, b, b.book)
	l.quiet = true
	n := crowd{talkers: 2, clerks: 3, tellers: 3, flows: 3, revokers: 1, drainers: 3}
	if len(env) > 1 { // no other request takes from the bucket
		n = crowd{}
	}
	s := &shaker{load: l}
	l.run(t, 3*time.Minute, n, func(ctx context.Context) { does(s, ctx) })
	b.book.drainsHold()
	found := func() []string {
		var out []string
		for _, law := range clusterLaws {
			for _, why := range b.book.breaches(law) {
				out = append(out, law+": "+why)
			}
		}
		return out
	}
	unended := l.kept
	for _, x := range l.tales {
		if x.err != nil {
			unended = append(unended, x.err)
		}
	}
	for _, x := range l.ran {
		if x.err != nil {
			unended = append(unended, x.err)
		}
	}
	if err := errors.Join(unended...); err != nil {
		return append(found(), lawEnds+": "+err.Error())
	}
	if out := found(); len(out) > 0 || n == (crowd{}) {
		return out
	}
	f := l.find(t)
	r := l.scene.judge(t, l.tales)
	l.flows.judgeFlows(t, l.ran)
	f.hold(b.book, r)
	out := found()
	for _, law := range laws {
		for _, why := range r.broken[law] {
			out = append(out, law+": "+why)
		}
	}
	return out
}

// TestClusterDefects sees to it that the storms find defects of the cluster.
func TestClusterDefects(t *testing.T) {
	file := plantAll(t, defects)
	t.Run("none", func(t *testing.T) {
		for _, what := range shaken(t, file, nil, func(s *shaker, ctx context.Context) {
			s.bury(ctx, s.nodes[0])
			s.rollAndKill(ctx)
		}) {
			t.Error(what)
		}
		for _, what := range shaken(t, file, []string{faultBy + "=none", smallBucket[0], smallBucket[1]}, (*shaker).drainAndRoll) {
			t.Error(what)
		}
	})
	for _, d := range defects {
		t.Run(d.name, func(t *testing.T) {
			found := shaken(t, file, append([]string{faultBy + "=" + d.name}, d.env...), d.does)
			for _, what := range found[:min(len(found), 3)] {
				t.Log(what[:min(len(what), 500)])
			}
			switch {
			case d.harmless && len(found) > 0:
				t.Error("it breaks a law")
			case d.harmless:
			case len(found) == 0:
				t.Error("no law has found it")
			case d.laws != nil && !slices.ContainsFunc(d.laws, func(law string) bool { return strings.Contains(strings.Join(found, "\n"), law) }):
				t.Errorf("none of the laws %q has found it", d.laws)
			}
		})
	}
}
