package client

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"agentsvc/cmd/svc/cli"
)

// runDetail is what a workflow run shows of its times.
type runDetail struct {
	Run struct {
		RunView
		StartedAt  *time.Time `json:"started_at"`
		FinishedAt *time.Time `json:"finished_at"`
	} `json:"run"`
	Steps []struct {
		Name       string     `json:"name"`
		StartedAt  time.Time  `json:"started_at"`
		FinishedAt *time.Time `json:"finished_at"`
	} `json:"steps"`
}

// litNode is a node of a workflow run that has started or was skipped.
type litNode struct {
	id, kind, state string
	began, ended    time.Time // zero: not known, or not yet
	tool            string    // that it calls
	child           string    // its run
	approval        string    // that it waits for
	asks            string    // tool of the approval
	expires         time.Time
}

// graph is a workflow run as its frames tell it. Frames have no times: those of the past come
// from the run's detail, and those of now from the clock.
type graph struct {
	run, of, status string
	began, ended    time.Time
	nodes           []*litNode
	steps           map[int]string // names by idx
	times           map[string][2]time.Time
	paused          *litNode // the last node that paused: the next approval is its own
	now             func() time.Time
}

// past takes the times of a run's detail.
func (g *graph) past(d *runDetail) {
	g.status = cmp.Or(g.status, d.Run.Status)
	if d.Run.StartedAt != nil {
		g.began = *d.Run.StartedAt
	}
	if d.Run.FinishedAt != nil {
		g.ended = *d.Run.FinishedAt
	}
	for _, s := range d.Steps {
		at := [2]time.Time{s.StartedAt}
		if s.FinishedAt != nil {
			at[1] = *s.FinishedAt
		}
		g.times[s.Name] = at
	}
	for _, n := range g.nodes {
		if at, known := g.times[n.id]; known {
			n.began = at[0]
			if n.settled() {
				n.ended = at[1]
			}
		}
	}
}

func (n *litNode) settled() bool { return n.state != "running" && n.state != "waiting" }

// node returns a node, which may be new.
func (g *graph) node(id, kind string) *litNode {
	for _, n := range g.nodes {
		if n.id == id {
			return n
		}
	}
	n := &litNode{id: id, kind: kind}
	g.nodes = append(g.nodes, n)
	return n
}

// apply takes a frame. It returns the node that the frame is about, if any.
func (g *graph) apply(f Frame) (*litNode, error) {
	var v struct {
		Idx        int       `json:"idx"`
		Name       string    `json:"name"`
		NodeID     string    `json:"node_id"`
		NodeType   string    `json:"node_type"`
		Status     string    `json:"status"`
		ChildRunID string    `json:"child_run_id"`
		Tool       string    `json:"tool"`
		ApprovalID string    `json:"approval_id"`
		ExpiresAt  time.Time `json:"expires_at"`
	}
	if err := json.Unmarshal(f.Data, &v); err != nil {
		return nil, err
	}
	switch f.Type {
	case "run.started":
		g.status = "running"
		if g.began.IsZero() {
			g.began = g.now()
		}
	case "step.started":
		g.steps[v.Idx] = v.Name
	case "node.started":
		n := g.node(v.NodeID, v.NodeType)
		n.state = "running"
		if n.began = g.times[n.id][0]; n.began.IsZero() {
			n.began = g.now()
		}
		return n, nil
	case "node.completed":
		n := g.node(v.NodeID, v.NodeType)
		n.state, n.child = v.Status, v.ChildRunID
		switch {
		case v.Status == "waiting":
			g.paused = n
		case n.began.IsZero(): // skipped
		default:
			if n.ended = g.times[n.id][1]; n.ended.IsZero() {
				n.ended = g.now()
			}
		}
		if n.settled() {
			n.approval = ""
		}
		return n, nil
	case "tool.called":
		if name, known := g.steps[v.Idx]; known {
			g.node(name, "tool").tool = v.Tool
		}
	case "approval.required":
		if n := g.paused; n != nil {
			n.approval, n.asks, n.expires = v.ApprovalID, v.Tool, v.ExpiresAt
		}
	case "run.waiting":
		g.status = "waiting_approval"
	case "run.resumed":
		g.status = "running"
		for _, n := range g.nodes {
			if n.approval == v.ApprovalID {
				n.approval, n.state = "", "running"
			} else if n.approval != "" {
				g.status = "waiting_approval"
			}
		}
	case "run.completed":
		g.status = v.Status
	case "run.failed":
		g.status = "failed"
	}
	if f.Terminal() && g.ended.IsZero() {
		g.ended = g.now()
	}
	return nil, nil
}

// lasted returns how long a node was at work, or is until now. It reports false if that is not
// known.
func (g *graph) lasted(began, ended time.Time) (time.Duration, bool) {
	if ended.IsZero() {
		ended = g.now()
	}
	return max(ended.Sub(began), 0), !began.IsZero()
}

// elapsed returns a duration in its one or two largest units.
func elapsed(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return timeLeft(d)
}

// said returns the line of a frame about a node, for output that is no terminal.
func (g *graph) said(n *litNode) string {
	s := fmt.Sprintf("%s (%s): %s", cli.Visible(n.id), cli.Visible(n.kind), cli.Visible(n.state))
	if d, known := g.lasted(n.began, n.ended); known && n.settled() {
		s += " after " + elapsed(d)
	}
	if n.child != "" {
		s += ", run " + cli.ShortID(n.child)
	}
	return s
}

// watchWorkflow follows a workflow run: as a drawing on a terminal, else line by line.
func watchWorkflow(cmd *cobra.Command, c *Client, d *runDetail) error {
	g := &graph{run: d.Run.ID, of: "workflow " + cli.ShortID(d.Run.WorkflowID), steps: map[int]string{}, times: map[string][2]time.Time{}, now: time.Now}
	g.past(d)
	var of versionAnswer // an archived workflow cannot be read
	if c.Call(cmd.Context(), http.MethodGet, workflowKind.at(d.Run.WorkflowID)+"?limit=1", nil, &of) == nil {
		g.of = "workflow:" + cli.Visible(of.of().Slug)
	}
	if f, ok := terminalOf(cmd.OutOrStdout()); ok {
		return g.draw(cmd, c, newScreen(f))
	}
	out := &display{w: cmd.OutOrStdout()}
	return follow(cmd, c, d.Run.ID, func(f Frame) error {
		n, err := g.apply(f)
		if err != nil || n == nil {
			return errors.Join(err, out.frame(f))
		}
		return out.line("[%s]", g.said(n))
	})
}

// redraw is how often a drawing is made again, because of its times or of what happened.
const redraw = 100 * time.Millisecond

// draw follows a run on a screen. What has happened before is drawn at once.
func (g *graph) draw(cmd *cobra.Command, c *Client, s *screen) error {
	frames, ended := make(chan Frame), make(chan struct{})
	ctx := cmd.Context()
	var followed error // valid once ended is closed
	go func() {
		defer close(ended)
		followed = follow(cmd, c, g.run, func(f Frame) error {
			select {
			case frames <- f:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	tick := time.NewTicker(redraw)
	defer tick.Stop()
	var last Frame
	for {
		select {
		case last = <-frames:
			if _, err := g.apply(last); err != nil {
				return err
			}
		case <-tick.C:
			if err := s.draw(g.lines()); err != nil {
				return err
			}
		case <-ended:
			var d runDetail // its times are exact
			if last.Terminal() && c.Call(ctx, http.MethodGet, runKind.at(g.run), nil, &d) == nil {
				g.status = ""
				g.past(&d)
			}
			if err := s.leave(g.lines()); err != nil {
				return err
			}
			if last.Type == "run.completed" {
				followed = errors.Join(followed, (&display{w: s.w}).frame(last))
			}
			return followed
		}
	}
}

// Looks of states.
var looks = map[string]struct{ sign, color string }{
	"running": {"●", "\x1b[33m"}, "waiting": {"◌", "\x1b[36m"}, "succeeded": {"✓", "\x1b[32m"}, "failed": {"✗", "\x1b[31m"}, "skipped": {"-", "\x1b[2m"},
}

// drawnLine is a line of a drawing; the first signed characters of its text have a color.
type drawnLine struct {
	text, color string
	signed      int
	open        bool // of a node that has not ended
}

// lines returns the drawing: the run, and each node in the order in which they started.
func (g *graph) lines() []drawnLine {
	head := g.of + "  run " + cli.ShortID(g.run) + "  " + cli.Visible(g.status)
	if d, known := g.lasted(g.began, g.ended); known {
		head += "  " + elapsed(d)
	}
	out := []drawnLine{{text: head, open: true}}
	var names, kinds int
	for _, n := range g.nodes {
		names, kinds = max(names, len(n.id)), max(kinds, len(n.kind))
	}
	for _, n := range g.nodes {
		look, known := looks[n.state]
		if !known {
			look.sign = "?"
		}
		line := fmt.Sprintf("  %s %-*s  %-*s  %-9s", look.sign, names, cli.Visible(n.id), kinds, cli.Visible(n.kind), cli.Visible(n.state))
		if d, known := g.lasted(n.began, n.ended); known {
			line += "  " + elapsed(d)
		}
		if n.tool != "" {
			line += "  " + cli.Visible(n.tool)
		}
		if n.child != "" {
			line += "  run " + cli.ShortID(n.child)
		}
		out = append(out, drawnLine{strings.TrimRight(line, " "), look.color, 4, !n.settled()})
		if n.approval != "" {
			line := "      " + howToApprove(cli.ShortID(n.approval))
			signed := utf8.RuneCountInString(line)
			if n.asks == "workflow:human_task" {
				line += " (or edit, respond)"
			}
			line += " decides it, " + timeLeft(n.expires.Sub(g.now())) + " left"
			out = append(out, drawnLine{line, "\x1b[1m", signed, true})
		}
	}
	return out
}

// terminalOf returns the terminal that w writes to, if it is one that can be drawn on.
func terminalOf(w io.Writer) (*os.File, bool) {
	f, ok := w.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
}

// screen draws lines in place on a terminal.
type screen struct {
	w     io.Writer
	size  func() (columns, rows int)
	plain bool // no colors
	drawn int  // lines above the cursor that the next drawing replaces
}

func newScreen(f *os.File) *screen {
	return &screen{w: f, plain: os.Getenv("NO_COLOR") != "", size: func() (int, int) {
		columns, rows, err := term.GetSize(int(f.Fd()))
		if err != nil || columns < 1 || rows < 1 {
			return 80, 24
		}
		return columns, rows
	}}
}

// draw replaces the drawing. A line above the screen's first cannot be replaced, so that only
// as many lines are drawn as fit: those of ended nodes are left out first.
func (s *screen) draw(lines []drawnLine) error {
	columns, rows := s.size()
	return s.write(shortened(lines, max(rows-1, 2)), columns)
}

// leave draws all lines, and leaves them on the terminal.
func (s *screen) leave(lines []drawnLine) error {
	columns, _ := s.size()
	err := s.write(lines, columns)
	s.drawn = 0
	return err
}

func (s *screen) write(lines []drawnLine, columns int) error {
	var b strings.Builder
	if s.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.drawn)
	}
	b.WriteString("\r")
	for _, l := range lines {
		b.WriteString(l.styled(columns, s.plain) + "\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	s.drawn = len(lines)
	_, err := io.WriteString(s.w, b.String())
	return err
}

// styled returns a line that fits into the columns: a longer one would take two lines.
func (l *drawnLine) styled(columns int, plain bool) string {
	text := []rune(l.text)
	if len(text) > columns {
		text = append(text[:max(columns-1, 0)], '…')
	}
	if signed := min(l.signed, len(text)); signed > 0 && l.color != "" && !plain {
		return l.color + string(text[:signed]) + "\x1b[0m" + string(text[signed:])
	}
	return string(text)
}

// shortened leaves out as many lines as needed, and says how many.
func shortened(lines []drawnLine, most int) []drawnLine {
	surplus := len(lines) - most
	if surplus <= 0 {
		return lines
	}
	surplus++ // the line that says so
	hidden := make([]bool, len(lines))
	left := surplus
	for _, open := range []bool{false, true} {
		for i := 1; i < len(lines) && left > 0; i++ {
			if !hidden[i] && lines[i].open == open {
				hidden[i] = true
				left--
			}
		}
	}
	out := []drawnLine{lines[0], {text: fmt.Sprintf("  … %d more", surplus)}}
	for i := 1; i < len(lines); i++ {
		if !hidden[i] {
			out = append(out, lines[i])
		}
	}
	return out
}
