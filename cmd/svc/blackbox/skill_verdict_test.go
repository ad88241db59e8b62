package blackbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The laws of browser skills in the storms (service.md, Browser skill run outcomes).
const (
	lawSkillOnce   = "2: a form that a person approved is sent at most once, and one that no person approved never is"
	lawSkillUndone = "2: what was sent is taken back at most once, and only where a check failed"
	lawSkillTold   = "2: a run of a browser skill says what became of its form, and unknown_outcome where nobody knows"
	lawSkillEnds   = "a run of a browser skill ends, and so does the agent's run that called it"
	lawSkillBilled = "a run of a browser skill is counted once"
	lawSkillLeft   = "no browser outlives its node"
)

var skillLaws = []string{lawSkillOnce, lawSkillUndone, lawSkillTold, lawSkillEnds, lawSkillBilled, lawSkillLeft}

// skillTale is an agent's run that cancels one order in a back office, with what became of it.
type skillTale struct {
	of      *backOffice
	order   string
	cuts    bool // the site acts, and cuts the connection
	rejects bool
	undoes  bool // a check of the skill fails, and it takes back what it sent

	run      string
	asked    map[string]bool // approvals that were opened
	approved int             // those that count as approved
	err      error

	status  string // of the agent's run
	heard   string // what the model heard
	rows    []skillRun
	effects int // at the site
	undone  int // there too
	usage   int // records
}

// tell plays a tale to the end of the agent's run, at any node and over whatever happens.
func (x *skillTale) tell(ctx context.Context, c *caller) {
	x.err = x.play(ctx, c)
}

func (x *skillTale) play(ctx context.Context, c *caller) error {
	x.asked = map[string]bool{}
	var started struct {
		RunID string `json:"run_id"`
	}
	input := `/call browser_skill:` + x.of.slug + `.run {"order":"` + x.order + `","cause":"stock","reason":"r"}`
	a, err := c.careful(ctx, "POST", "/v1/agents/"+x.of.agent+"/runs", fmt.Sprint("skill-", x.of.slug, " ", x.order), object{"input": input})
	if err == nil && a.status != http.StatusAccepted {
		err = fmt.Errorf("POST of %s: %s", x.order, a)
	}
	if err == nil {
		err = a.decode(&started)
	}
	if err != nil {
		return err
	}
	x.run = started.RunID
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		r := new(runAnswer)
		a, err := c.careful(ctx, "GET", "/v1/runs/"+x.run, "", nil)
		if err == nil {
			err = a.decode(r)
		}
		switch {
		case err != nil:
			return err
		case terminalStatus[r.Run.Status]:
			x.status, x.heard = r.Run.Status, toolOutput(r)
			return nil
		case r.Run.Status == "waiting_approval":
			if err := x.decide(ctx, c); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the run of %s is %s: %w", x.order, r.Run.Status, ctx.Err())
		}
	}
}

// decide decides on the approvals that wait, each one twice at a time.
func (x *skillTale) decide(ctx context.Context, c *caller) error {
	var list struct{ Items []skillApproval }
	a, err := c.careful(ctx, "GET", "/v1/approvals?status=pending&run_id="+x.run, "", nil)
	if err == nil {
		err = a.decode(&list)
	}
	if err != nil {
		return err
	}
	action := "approve"
	if x.rejects {
		action = "reject"
	}
	for _, p := range list.Items {
		x.asked[p.ID] = true
		both := make([]error, 2)
		each(2, 2, func(i int) {
			var a answer
			a, both[i] = c.careful(ctx, "POST", "/v1/approvals/"+p.ID+"/decision", fmt.Sprint(p.ID, " ", i), object{"action": action})
			if both[i] == nil && a.status != http.StatusOK && a.code() != "ALREADY_DECIDED" {
				both[i] = fmt.Errorf("the decision on %s: %s", x.order, a)
			}
		})
		for _, err := range both {
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// look reads what became of a tale.
func (x *skillTale) look(ctx context.Context, c *caller) error {
	read := func(path string, into any) error {
		a, err := c.careful(ctx, "GET", path, "", nil)
		if err == nil && a.status != http.StatusOK {
			err = fmt.Errorf("GET %s: %s", path, a)
		}
		if err == nil {
			err = a.decode(into)
		}
		return err
	}
	x.approved = 0
	var rows struct{ Items []skillRun }
	var records struct{ Items []json.RawMessage }
	if err := read("/v1/browser-skills/runs?agent_run_id="+x.run, &rows); err != nil {
		return err
	}
	if err := read("/v1/usage/records?kind=browser_skill_run&run_id="+x.run, &records); err != nil {
		return err
	}
	for approval := range x.asked {
		var got struct{ Status string }
		if err := read("/v1/approvals/"+approval, &got); err != nil {
			return err
		}
		if got.Status == "approved" {
			x.approved++
		}
	}
	x.rows, x.usage, x.effects, x.undone = rows.Items, len(records.Items), x.of.Effects(x.order), x.of.Restores(x.order)
	return nil
}

// hold holds the laws against what became of a tale.
func (x *skillTale) hold(rule ruling) {
	rule(lawSkillEnds, x.err == nil && x.status == "succeeded", "order %s, run %s: it is %q, %v", x.order, x.run, x.status, x.err)
	if x.err != nil {
		return
	}
	rule(lawSkillOnce, x.effects <= x.approved, "order %s was cancelled %d times, %d approvals", x.order, x.effects, x.approved)
	rule(lawSkillBilled, x.usage == len(x.rows), "order %s: %d records of usage for %d runs", x.order, x.usage, len(x.rows))
	rule(lawSkillTold, len(x.rows) == 1, "order %s has %d runs", x.order, len(x.rows))
	if len(x.rows) != 1 {
		return
	}
	r, code := x.rows[0], ""
	if r.Code != nil {
		code = *r.Code
	}
	end := strings.TrimSpace(r.Status + " " + code)
	least, most := 0, 0
	switch {
	case end == "succeeded", r.Status == "verification_failed", end == "committed unknown_outcome":
		least, most = 1, 1
	case end == "committing unknown_outcome":
		most = 1
	case r.Status == "failed", r.Status == "rejected":
	default:
		rule(lawSkillEnds, false, "the run for order %s is %q", x.order, end)
		return
	}
	rule(lawSkillTold, x.effects >= least && x.effects <= most, "the run for order %s is %q, and it was cancelled %d times", x.order, end, x.effects)
	rule(lawSkillUndone, x.undone == 0 || x.undone == 1 && r.Status == "verification_failed", "the run for order %s is %q, and it was taken back %d times", x.order, end, x.undone)
	rule(lawSkillTold, !x.undoes || r.Status != "succeeded", "a check of the run for order %s fails, and it succeeded", x.order)
	hears := map[string]string{"succeeded": `"status":"succeeded"`, "rejected": `"rejected":true`}[r.Status]
	if hears == "" {
		hears = `"error":"` + code + `"`
	}
	rule(lawSkillTold, strings.Contains(x.heard, hears) || r.Status == "failed" && strings.Contains(x.heard, "BROWSER_SKILL_UNAVAILABLE"), "the run for order %s is %q, and the model heard %s", x.order, end, x.heard)
	rule(lawSkillTold, x.rejects == (r.Status == "rejected") || r.Status == "failed" && len(x.asked) == 0, "the run for order %s is %q, its approval was rejected: %t", x.order, end, x.rejects)
	if x.cuts {
		rule(lawSkillTold, x.effects == 0 || end == "committing unknown_outcome", "the site answered nothing to the cancel of order %s, whose run is %q", x.order, end)
	}
}

// end is the status and code of a tale's run.
func (x *skillTale) end() string {
	if len(x.rows) != 1 {
		return fmt.Sprintf("%d runs", len(x.rows))
	}
	if x.rows[0].Code == nil {
		return x.rows[0].Status
	}
	return x.rows[0].Status + " " + *x.rows[0].Code
}

// browsersOf begins the names of the directories of a node's browsers (transport/browser).
func browsersOf(n *node) string {
	dir := sha256.Sum256([]byte(n.dataDir()))
	return "node-" + hex.EncodeToString(dir[:6]) + "-"
}

// browsers returns the processes of browsers of a node: their command lines name the directory of its
// installation.
func browsers(t *testing.T, n *node) (pids []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	name := browsersOf(n)
	for _, at := range all {
		if line, err := os.ReadFile(at); err == nil && strings.Contains(string(line), name) {
			pids = append(pids, filepath.Base(filepath.Dir(at)))
		}
	}
	return pids
}

// strays are those of processes whose forebears hold none of the living.
func strays(pids []string, living []int) (out []string) {
	for _, pid := range pids {
		at, _ := strconv.Atoi(pid)
		for at > 1 && !slices.Contains(living, at) {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", at))
			if err != nil {
				at = -1 // it has ended
				break
			}
			fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
			at, _ = strconv.Atoi(fields[1])
		}
		if at == 0 || at == 1 {
			out = append(out, pid)
		}
	}
	return out
}

// TestSkillLawsFindFaults: each law finds what it is there for, and nothing else.
func TestSkillLawsFindFaults(t *testing.T) {
	t.Parallel()
	code := func(s string) *string { return &s }
	fine := func() *skillTale {
		return &skillTale{order: "1", run: "r", asked: map[string]bool{"a": true}, approved: 1, status: "succeeded", heard: `{"ok":true,"status":"succeeded"}`,
			rows: []skillRun{{Status: "succeeded"}}, effects: 1, usage: 1}
	}
	is := func(x *skillTale, status, code, heard string, effects int) {
		x.rows[0].Status, x.rows[0].Code, x.heard, x.effects = status, &code, heard, effects
	}
	for _, c := range []struct {
		name string
		with func(*skillTale)
		law  string // that finds it; empty: it is fine
	}{
		{"it succeeds", func(*skillTale) {}, ""},
		{"its outcome is unknown, and it was sent", func(x *skillTale) {
			is(x, "committing", "unknown_outcome", `{"error":"unknown_outcome"}`, 1)
		}, ""},
		{"its outcome is unknown, and it was not sent", func(x *skillTale) {
			is(x, "committing", "unknown_outcome", `{"error":"unknown_outcome"}`, 0)
		}, ""},
		{"it fails before it is approved", func(x *skillTale) {
			is(x, "failed", "step_failed", `{"error":"BROWSER_SKILL_UNAVAILABLE"}`, 0)
			x.asked, x.approved = nil, 0
		}, ""},
		{"it is rejected", func(x *skillTale) {
			is(x, "rejected", "", `{"rejected":true}`, 0)
			x.rejects, x.approved = true, 0
		}, ""},
		{"it is sent twice", func(x *skillTale) { x.effects = 2 }, lawSkillOnce},
		{"it is sent, and was rejected", func(x *skillTale) {
			is(x, "rejected", "", `{"rejected":true}`, 1)
			x.rejects, x.approved = true, 0
		}, lawSkillOnce},
		{"it is sent before it is approved", func(x *skillTale) {
			is(x, "failed", "step_failed", `{"error":"step_failed"}`, 1)
			x.asked, x.approved = nil, 0
		}, lawSkillOnce},
		{"it failed, and was sent", func(x *skillTale) { is(x, "failed", "step_failed", `{"error":"step_failed"}`, 1) }, lawSkillTold},
		{"it succeeded, and was not sent", func(x *skillTale) { x.effects = 0 }, lawSkillTold},
		{"nobody knows, and it says that it succeeded", func(x *skillTale) { x.cuts = true }, lawSkillTold},
		{"the model hears something else", func(x *skillTale) { x.heard = `{"error":"step_failed"}` }, lawSkillTold},
		{"it has two runs", func(x *skillTale) { x.rows, x.usage = append(x.rows, x.rows[0]), 2 }, lawSkillTold},
		{"it is still committing", func(x *skillTale) { x.rows[0].Status, x.rows[0].Code = "committing", nil }, lawSkillEnds},
		{"the agent's run hangs", func(x *skillTale) { x.err = context.DeadlineExceeded }, lawSkillEnds},
		{"the agent's run fails", func(x *skillTale) { x.status = "failed" }, lawSkillEnds},
		{"a check failed, and it is taken back", func(x *skillTale) {
			is(x, "verification_failed", "verification_failed", `{"error":"verification_failed"}`, 1)
			x.undoes, x.undone = true, 1
		}, ""},
		{"it is taken back twice", func(x *skillTale) {
			is(x, "verification_failed", "verification_failed", `{"error":"verification_failed"}`, 1)
			x.undoes, x.undone = true, 2
		}, lawSkillUndone},
		{"it is taken back, and nobody knows whether it was to be", func(x *skillTale) {
			is(x, "committed", "unknown_outcome", `{"error":"unknown_outcome"}`, 1)
			x.undoes, x.undone = true, 1
		}, lawSkillUndone},
		{"a check fails, and it succeeded", func(x *skillTale) { x.undoes = true }, lawSkillTold},
		{"it is counted twice", func(x *skillTale) { x.usage = 2 }, lawSkillBilled},
		{"it is not counted", func(x *skillTale) { x.usage = 0 }, lawSkillBilled},
		{"a code", func(x *skillTale) { x.rows[0].Status, x.rows[0].Code = "committed", code("") }, lawSkillEnds},
	} {
		x, broken := fine(), map[string]bool{}
		c.with(x)
		x.hold(func(law string, ok bool, _ string, _ ...any) { broken[law] = broken[law] || !ok })
		if c.law == "" && slices.ContainsFunc(skillLaws, func(l string) bool { return broken[l] }) || c.law != "" && !broken[c.law] {
			t.Errorf("%s: broken are %v", c.name, broken)
		}
	}
	// A process that descends from a living node is none of the strays.
	us := []string{strconv.Itoa(os.Getpid())}
	if len(strays(us, []int{os.Getppid()})) != 0 || len(strays(us, nil)) != 1 || len(strays([]string{"4194305"}, nil)) != 0 {
		t.Error(strays(us, []int{os.Getppid()}), strays(us, nil))
	}
}
