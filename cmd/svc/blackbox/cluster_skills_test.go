//go:build storm

package blackbox

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentsvc/transport/browser/site"
)

// skillBed is a bed with back offices that agents of one tenant cancel orders in.
type skillBed struct {
	*bed
	c           *caller
	slow, cuts  *backOffice   // one acts and thinks for a while, one acts and cuts the connection
	undoes      []*backOffice // each for one order: a check of its skill fails, which is waited for, and then it is taken back
	told        int
	nodes, dead int // nodes and processes of browsers that were killed
}

// takenBack is how many orders at most are taken back: many are not, because their node or browser is killed meanwhile.
const takenBack = 16

func newSkillBed(t *testing.T, size int, file string, env ...string) *skillBed {
	t.Helper()
	b := newBed(t, size, stormLease, append([]string{"SVC_SKILL_STEP_TIMEOUT=20s"}, env...)...)
	for _, m := range b.nodes {
		if file != "" {
			m.file = file
		}
	}
	b.start()
	s := &skillBed{bed: b, c: b.client(b.desk.tenant("skills"), b.book)}
	s.slow, s.cuts = s.c.backOffice(t, "Cancel slowly", object{}), s.c.backOffice(t, "Cancel and cut", object{})
	for i := range takenBack {
		s.undoes = append(s.undoes, s.c.backOfficeOf(t, fmt.Sprint("Cancel in vain ", i), object{}, undone, byPassword))
		s.undoes[i].Set(site.Knobs{Again: true})
	}
	s.slow.Set(site.Knobs{Slow: 500 * time.Millisecond, Again: true}) // only the service keeps an order from a second cancel
	s.cuts.Set(site.Knobs{Cut: true, Again: true})
	return s
}

// tale returns the next one: most are of the slow site, and some of each are rejected.
func (s *skillBed) tale() *skillTale {
	x := &skillTale{of: s.slow, order: strconv.Itoa(5000 + s.told), rejects: s.told%6 == 4, cuts: s.told%4 == 3}
	switch {
	case x.cuts:
		x.of = s.cuts
	case s.told%6 == 2 && s.told/6 < takenBack:
		x.of, x.order, x.undoes = s.undoes[s.told/6], "1001", true // of its compensation
	}
	s.told++
	x.of.Add(site.Order{ID: x.order, Customer: "Ada Lovelace", Item: "Desk lamp", Total: 49.9})
	return x
}

// tell tells so many tales, a few at a time, and looks at what became of them.
func (s *skillBed) tell(ctx context.Context, n, atOnce int) []*skillTale {
	tales := make([]*skillTale, n)
	for i := range tales {
		tales[i] = s.tale()
	}
	each(atOnce, n, func(i int) {
		tales[i].tell(ctx, s.c)
		s.book.event("order %s: %s", tales[i].order, tales[i].status)
	})
	return tales
}

func (s *skillBed) judge(ctx context.Context, tales []*skillTale) {
	each(8, len(tales), func(i int) {
		if x := tales[i]; x.err == nil {
			x.err = x.look(ctx, s.c)
		}
	})
	for _, x := range tales {
		x.hold(s.book.rule)
	}
}

func (s *skillBed) living() (pids []int) {
	for _, m := range s.bed.nodes {
		if m.alive() {
			pids = append(pids, m.pid())
		}
	}
	return pids
}

// none waits until no process of a browser is left but those of living nodes.
func (s *skillBed) none(ctx context.Context, of func() []string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	left := of()
	for len(left) > 0 && pauseFor(ctx, 50*time.Millisecond) {
		left = of()
	}
	s.book.rule(lawSkillLeft, len(left) == 0, "processes %v of browsers are left", left)
}

func (s *skillBed) strays() []string { return strays(browsers(s.t, s.bed.nodes[0].node), s.living()) }

// kill kills a node, or one process of a browser.
func (s *skillBed) kill(ctx context.Context) {
	if left := browsers(s.t, s.bed.nodes[0].node); len(left) > 0 && rand.IntN(2) == 0 {
		pid, _ := strconv.Atoi(left[rand.IntN(len(left))])
		if syscall.Kill(pid, syscall.SIGKILL) == nil {
			s.book.event("process %d of a browser is killed", pid)
			s.dead++
		}
		return
	}
	from := s.healthy()
	if len(from) < min(2, len(s.bed.nodes)) {
		return
	}
	m := from[rand.IntN(len(from))]
	m.kill()
	s.nodes++
	pauseFor(ctx, rand.N(time.Second))
	m.back(ctx)
	s.none(ctx, s.strays)
}

// skillEnds are ends that a storm must have seen to have shown anything.
var skillEnds = []string{"succeeded", "rejected", "committing unknown_outcome"}

// takenBackEnd takes longer than most nodes and browsers live in a storm, so it is seen behind it.
const takenBackEnd = "verification_failed verification_failed"

// TestClusterSkills kills nodes and browsers while agents cancel orders through browser skills: each approved
// order is cancelled once at most, every run ends and says what became of it, and nothing is left running.
func TestClusterSkills(t *testing.T) {
	s := newSkillBed(t, 3, "")
	const runs, nodes, dead = 30, 8, 8
	ctx := within(t, 6*time.Minute)
	over := make(chan struct{})
	var killer sync.WaitGroup
	killer.Go(func() {
		for pauseFor(ctx, 2*time.Second+rand.N(8*time.Second)) { // a run takes seconds: some must come through
			select {
			case <-over:
				return
			default:
			}
			s.kill(ctx)
		}
	})
	var tales []*skillTale
	ends := map[string]int{}
	void := func() bool { return slices.ContainsFunc(skillEnds, func(end string) bool { return ends[end] == 0 }) }
	for len(tales) < runs || (s.nodes < nodes || s.dead < dead || void()) && len(tales) < 3*runs {
		told := s.tell(ctx, 6, 3)
		for _, x := range told {
			if x.err == nil && x.look(ctx, s.c) == nil {
				ends[x.end()]++
			}
		}
		tales = append(tales, told...)
	}
	close(over)
	killer.Wait()
	for _, m := range s.bed.nodes {
		m.back(ctx)
	}
	tales = append(tales, s.tell(ctx, 6, 3)...)
	s.judge(ctx, tales)
	clear(ends)
	for _, x := range tales {
		ends[x.end()]++
	}
	for _, m := range s.bed.nodes {
		eventually(t, ctx, "node "+m.name+" has no open page", func() bool { n, ok := m.metric("svc_browser_sessions"); return ok && n == 0 })
	}
	for _, m := range s.bed.nodes {
		m.term()
	}
	s.none(ctx, func() []string { return browsers(t, s.bed.nodes[0].node) })
	s.book.report(t)
	s.book.notVoid(t, skillLaws...)
	if void() || ends[takenBackEnd] == 0 {
		t.Errorf("no run of one of the ends %q and %q, the test is void", skillEnds, takenBackEnd)
	}
	if s.nodes < nodes || s.dead < dead {
		t.Errorf("%d nodes and %d processes of browsers were killed, the test is void", s.nodes, s.dead)
	}
	for _, end := range slices.Sorted(maps.Keys(ends)) {
		t.Logf("%4d %s", ends[end], end)
	}
	t.Logf("%d nodes and %d processes of browsers were killed", s.nodes, s.dead)
}

const (
	skillMachine = "actors/skillrun/machine.go"
	skillEffects = "actors/skillrun/effects.go"
	skillKind    = "actors/skillrun/kind.go"
)

// skillDefects are defects of browser skills, each with the law that finds it.
var skillDefects = []defect{
	{name: begunAgain, patches: []patch{
		{skillMachine, "\tdefault:\n\t\tc.happens(skill.Crashed, nil)\n",
			"\tcase c.s.Phase == skill.Committing && planted(\"" + begunAgain + "\"):\n\t\tc.s.Phase, c.s.Status = skill.Repreparing, skill.Running\n\t\tc.fact(Moved{})\n\tdefault:\n\t\tc.happens(skill.Crashed, nil)\n"},
	}, laws: []string{lawSkillOnce}},
	{name: "an unknown outcome is a failure", patches: []patch{
		{skillMachine, "\tc.reported(skill.Committing, m.Click) // unless", "\tif c.s.Phase == skill.Committing && m.Click != nil && m.Click.Event == skill.Lost && planted(\"an unknown outcome is a failure\") {\n" +
			"\t\tc.s.Phase = skill.Repreparing\n\t\tc.reported(skill.Repreparing, m.Click)\n\t\treturn\n\t}\n\tc.reported(skill.Committing, m.Click) // unless"},
	}, laws: []string{lawSkillTold}},
	{name: "the form is sent while it is prepared", patches: []patch{
		{skillEffects, "\t\tif session != nil {\n\t\t\tsession.Close() // no page", "\t\tif session != nil {\n\t\t\tif planted(\"the form is sent while it is prepared\") {\n\t\t\t\tsession.Commit(ctx)\n\t\t\t}\n\t\t\tsession.Close() // no page"},
	}, laws: []string{lawSkillOnce}},
	{name: "what is taken back is taken back again", patches: []patch{
		{skillEffects, "\t\tr, err = k.cfg.Browser.Compensate(ctx, j)\n", "\t\tr, err = k.cfg.Browser.Compensate(ctx, j)\n\t\tif planted(\"what is taken back is taken back again\") {\n\t\t\tr, err = k.cfg.Browser.Compensate(ctx, j)\n\t\t}\n"},
	}, laws: []string{lawSkillUndone}},
	{name: "an approved form is forgotten", patches: []patch{
		{skillMachine, "\tcase skill.Repreparing:\n\t\treturn []", "\tcase skill.Repreparing:\n\t\tif planted(\"an approved form is forgotten\") {\n\t\t\treturn nil\n\t\t}\n\t\treturn []"},
	}, laws: []string{lawSkillEnds}},
	{name: "a run is not counted", patches: []patch{
		{skillKind, "\tc.Usage = append(c.Usage, usage(s, now))\n", "\tif !planted(\"a run is not counted\") {\n\t\tc.Usage = append(c.Usage, usage(s, now))\n\t}\n"},
	}, laws: []string{lawSkillBilled}},
}

const begunAgain = "what was begun is begun again"

// TestClusterSkillDefects sees to it that the laws of browser skills find defects of the service.
func TestClusterSkillDefects(t *testing.T) {
	file := plantAll(t, skillDefects)
	for _, d := range append([]defect{{name: "none"}}, skillDefects...) {
		t.Run(d.name, func(t *testing.T) {
			s := newSkillBed(t, 1, file, faultBy+"="+d.name)
			ctx := within(t, 150*time.Second)
			told := make(chan []*skillTale, 1)
			telling, cancel := context.WithTimeout(ctx, 2*time.Minute)
			defer cancel()
			go func() { told <- s.tell(telling, 5, 3) }()
			if m := s.bed.nodes[0]; d.name == begunAgain || d.name == "none" {
				eventually(t, ctx, "the site acts and does not answer yet", func() bool { return s.slow.Effects("5000")+s.slow.Effects("5001")+s.slow.Effects("5002") > 0 })
				m.kill()
				m.back(ctx)
			}
			s.judge(ctx, <-told)
			if d.name == "none" {
				s.none(ctx, s.strays)
				s.book.report(t)
				s.book.notVoid(t, skillLaws...)
				// A browser that outlives its node.
				left := exec.Command("/bin/sh", "-c", "read x; : "+browsersOf(s.bed.nodes[0].node)+"x/")
				if _, err := left.StdinPipe(); err != nil {
					t.Fatal(err)
				}
				if err := left.Start(); err != nil {
					t.Fatal(err)
				}
				s.none(ctx, s.strays)
				_ = left.Process.Kill()
				_ = left.Wait()
				if len(s.book.breaches(lawSkillLeft)) == 0 {
					t.Errorf("the law %q has not found it", lawSkillLeft)
				}
			}
			for _, law := range d.laws {
				found := s.book.breaches(law)
				if len(found) == 0 {
					t.Fatalf("the law %q has not found it", law)
				}
				t.Logf("%s: %s", law, found[0][:min(len(found[0]), 300)])
			}
		})
	}
}
