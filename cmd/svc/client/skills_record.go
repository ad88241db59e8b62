package client

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
	"agentsvc/schemas/skill"
)

// Teacher opens a browser of this machine at url and records what the person does there, until
// done is closed or the window is. said is told of each step.
type Teacher func(ctx context.Context, url string, said func(string), done <-chan struct{}) (Lesson, error)

// Lesson is what a person showed. The secrets that they typed are in memory alone.
type Lesson interface {
	Recording() *skill.Recording
	Secrets() map[string]string
	// Replay performs the recording as a dry run; empty values are those that were recorded.
	Replay(ctx context.Context, values json.RawMessage) (*skill.Replay, error)
	Close() error
}

const recordHelp = `It opens your own Chromium at the address and records what you do there: clicks, texts, lists, boxes. Popups are closed.
What you type into a password field is a secret: it is shown nowhere, and is sent once, with the skill, which keeps it encrypted.

  Alt-click        picks the element as a result field
  Alt-Shift-click  marks it as the commit step, without clicking

Press Enter here when you have shown everything, also after you closed the window. Then say which values are parameters. The skill is tried
as a dry run in a fresh window before it is saved. On a machine without a display, record over the API: the guide says how.`

type recordFlags struct {
	name, slug, description, commit, params, out string
	bind                                         []string
	own, reads                                   bool
}

func skillsRecordCommand(teach Teacher) *cobra.Command {
	var f recordFlags
	cmd := &cobra.Command{Use: "record URL", Short: "teach a skill: show it once in your own browser", Long: recordHelp, Args: cobra.ExactArgs(1), ValidArgsFunction: cobra.NoFileCompletions}
	cmd.Flags().StringVar(&f.name, "name", "", "of the skill, for people (required)")
	cmd.Flags().StringVar(&f.slug, "slug", "", "of the skill (default made from the name)")
	cmd.Flags().StringVar(&f.description, "description", "", "what the model reads about its tools")
	cmd.Flags().BoolVar(&f.own, "own", false, "you own the site, or may automate it (required)")
	cmd.Flags().StringSliceVar(&f.bind, "param", nil, "make the value of a step a parameter: step=name; without it you are asked")
	cmd.Flags().StringVar(&f.commit, "commit", "", "the commit step; without it you are asked, unless it was marked")
	cmd.Flags().BoolVar(&f.reads, "reads-only", false, "the skill changes nothing: it has no commit step")
	cmd.Flags().StringVar(&f.params, "params", "", "the values of the dry run, a JSON object: itself, @ and a file, or - for the input (default as recorded)")
	cmd.Flags().StringVar(&f.out, "out", "", "write the definition, without secrets, to this file too; it must not exist")
	cmd.RunE = cli.Does(func(cmd *cobra.Command, args []string) error { return recordSkill(cmd, teach, args[0], &f) })
	return cmd
}

func recordSkill(cmd *cobra.Command, teach Teacher, url string, f *recordFlags) (err error) {
	switch {
	case f.name == "":
		return cli.WrongUse(errors.New("--name: is required"))
	case !f.own:
		return cli.WrongUse(errors.New("--own: is required: only record actions on a site that you own or may automate"))
	case f.reads && f.commit != "":
		return cli.WrongUse(errors.New("give one of --commit and --reads-only"))
	}
	var values json.RawMessage
	if f.params != "" {
		if values, err = readArgs(cmd.Context(), cmd.InOrStdin(), f.params); err != nil {
			return cli.WrongUse(fmt.Errorf("--params: %w", err))
		}
	}
	c, err := newClient()
	if err != nil {
		return err
	}
	if err := f.free(cmd.Context(), c); err != nil {
		return err
	}
	errs := cmd.ErrOrStderr()
	said := func(line string) { fmt.Fprintln(errs, "  "+cli.Visible(line)) }
	in := &asker{cmd: cmd, in: bufio.NewReader(cmd.InOrStdin()), terminal: isTerminal(cmd.InOrStdin())}
	done, entered := make(chan struct{}), make(chan struct{})
	if in.terminal {
		go func() {
			defer close(entered)
			_, _ = in.line("Show it in the window, then press Enter here.\n")
			close(done)
		}()
	} else {
		close(entered)
	}
	lesson, err := teach(cmd.Context(), url, said, done)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lesson.Close()) }()
	select {
	case <-entered:
	default:
		fmt.Fprintln(errs, "The window was closed. Press Enter to go on.")
		<-entered
	}
	r := lesson.Recording()
	if err := f.mark(in, r); err != nil {
		return err
	}
	d := r.Definition()
	if f.out != "" {
		if err := writeDefinition(f.out, d); err != nil {
			return err
		}
	}
	fmt.Fprintln(errs, "Dry run …")
	replay, err := lesson.Replay(cmd.Context(), values)
	if err != nil {
		return err
	}
	if replay.Status != skill.ReplayLanded {
		at := ""
		if replay.StepID != "" {
			at = " at step " + replay.StepID
		}
		return fmt.Errorf("the dry run did not land%s: %s Nothing was saved", cli.Visible(at), cli.Visible(replay.Message))
	}
	body := map[string]any{"name": f.name, "description": f.description, "definition": d, "owner_attested": true, "auth": map[string]any{"mode": d.Auth.Kind, "secrets": lesson.Secrets()}}
	if f.slug != "" {
		body["slug"] = f.slug
	}
	if d.CommitStepID == "" {
		body["policy"] = map[string]any{"approval": skill.NoneForIdempotentReads, "risk_level": "low"}
	}
	err = callAndShow(cmd, c, http.MethodPost, skillKind.path, body, printSkill)
	if err != nil && f.out == "" {
		name := "skill-" + cmp.Or(cli.SlugOf(f.slug), cli.SlugOf(f.name), "recorded") + ".json"
		if unwritten := writeDefinition(name, d); unwritten != nil {
			return errors.Join(err, unwritten)
		}
		return fmt.Errorf("%w\nWhat you showed is kept in %s, without secrets", err, name)
	}
	return err
}

// free checks that skills can be read and that the slug is free, before the person shows anything.
func (f *recordFlags) free(ctx context.Context, c *Client) error {
	most := 1
	if f.slug != "" {
		most = maxLooked
	}
	all, _, err := c.nameable(ctx, skillKind, most)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(all, func(n cli.Named) bool { return n.Slug == f.slug && f.slug != "" }) {
		return fmt.Errorf("--slug: a skill %q exists already", cli.Visible(f.slug))
	}
	return nil
}

// mark binds parameters and marks the commit step, as the flags say, or as the person answers.
func (f *recordFlags) mark(in *asker, r *skill.Recording) error {
	if len(r.Steps) == 0 {
		return errors.New("nothing was recorded")
	}
	if r.CommitStepID == "" && f.commit == "" && !f.reads {
		if !in.terminal {
			return cli.WrongUse(errors.New("no commit step is marked: give --commit or --reads-only"))
		}
		for {
			step, err := in.line("Which step changes something at the site (its id; empty: none, it only reads)? ")
			if step = strings.TrimSpace(step); err != nil || step == "" {
				if err != nil {
					return err
				}
				break
			}
			err = r.Commit(step)
			if err == nil {
				break
			}
			fmt.Fprintln(in.cmd.ErrOrStderr(), cli.Visible(err.Error()))
		}
	}
	if f.commit != "" {
		if err := r.Commit(strings.TrimSpace(f.commit)); err != nil {
			return err
		}
	}
	bind := func(text string) error {
		id, name, ok := strings.Cut(text, "=")
		if !ok {
			return cli.WrongUse(fmt.Errorf("--param: %q must be step=name", text))
		}
		return r.Bind(strings.TrimSpace(id), strings.TrimSpace(name), "", "")
	}
	for _, text := range f.bind {
		if err := bind(text); err != nil {
			return err
		}
	}
	for len(f.bind) == 0 && in.terminal {
		text, err := in.line("A parameter, step=name (empty: no more): ")
		if err != nil || strings.TrimSpace(text) == "" {
			return err
		}
		if err := bind(text); err != nil {
			fmt.Fprintln(in.cmd.ErrOrStderr(), cli.Visible(err.Error()))
		}
	}
	return nil
}

func writeDefinition(name string, d *skill.Definition) (err error) {
	doc, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	out, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.WriteString(out, string(doc)+"\n")
	return err
}
