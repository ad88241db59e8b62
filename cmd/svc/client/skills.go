package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
)

var (
	skillKind    = kind{what: "skill", path: "/v1/browser-skills", slugs: true}
	skillRunKind = kind{what: "run of a skill", path: "/v1/browser-skills/runs"}
)

// SkillView is a browser skill as commands show it.
type SkillView struct {
	ID         string `json:"id"`
	Slug       string `json:"slug"`
	Name       string `json:"name"`
	Enabled    bool   `json:"enabled"`
	Definition struct {
		StartURL string `json:"start_url"`
	} `json:"definition"`
	Policy struct {
		Approval string `json:"approval"`
		Risk     string `json:"risk_level"`
	} `json:"policy"`
}

// SkillRunView is a run of a skill as commands show it.
type SkillRunView struct {
	ID         string    `json:"id"`
	SkillID    string    `json:"skill_id"`
	AgentRunID *string   `json:"agent_run_id"`
	Mode       string    `json:"mode"`
	Status     string    `json:"status"`
	Code       *string   `json:"code"`
	CreatedAt  time.Time `json:"created_at"`
	Precommit  *struct {
		URL    string            `json:"url"`
		Title  string            `json:"title"`
		Shot   string            `json:"screenshot_key"`
		Values map[string]string `json:"values"`
	} `json:"precommit"`
	Steps        []skillStepView `json:"steps"`
	Verification []struct {
		Kind     string `json:"kind"`
		OK       bool   `json:"ok"`
		Expected string `json:"expected"`
		Actual   string `json:"actual"`
	} `json:"verification"`
	Result       json.RawMessage `json:"result"`
	Compensation *struct {
		Ran   bool            `json:"ran"`
		Steps []skillStepView `json:"steps"`
		Error *string         `json:"error"`
	} `json:"compensation"`
}

type skillStepView struct {
	ID     string `json:"id"`
	Kind   string `json:"kind"`
	Label  string `json:"label"`
	Status string `json:"status"`
	Note   string `json:"note"`
	Shot   string `json:"screenshot_key"`
}

func skillsCommand(teach Teacher) *cobra.Command {
	cmd := cli.Group("skills", "browser skills: work on web sites as tools of agents")
	cmd.Long = idHelp
	cmd.AddCommand(skillsListCommand(), onOne(skillKind, "get", "one skill, with its grants and last runs", show), skillsCreateCommand(), skillsRecordCommand(teach), skillsUpdateCommand(),
		asking(onOne(skillKind, "rm", "delete a skill with its grants and runs", remove)),
		skillsDryRunCommand(), skillsRunsCommand(), skillsShowCommand(), skillsGrantCommand(), skillsRevokeCommand())
	return cmd
}

func skillsListCommand() *cobra.Command {
	return listCommand(skillKind, "list browser skills, newest first", "skills", "SKILL\tSLUG\tNAME\tENABLED\tAPPROVAL\tRISK\tSTART", func(w io.Writer, s *SkillView) {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", cli.ShortID(s.ID), cli.Visible(s.Slug), cli.Shorten(cli.Visible(s.Name), 40), yesNo(s.Enabled),
			cli.Visible(s.Policy.Approval), cli.Visible(s.Policy.Risk), cli.Shorten(cli.Visible(s.Definition.StartURL), 60))
	})
}

type skillAnswer struct {
	Skill              SkillView `json:"skill"`
	CredentialsDropped bool      `json:"credentials_dropped"`
}

func printSkill(w io.Writer, a *skillAnswer) error {
	state := "enabled"
	if !a.Skill.Enabled {
		state = "disabled"
	}
	if _, err := fmt.Fprintf(w, "%s  %s  %s\n", cli.Visible(a.Skill.ID), cli.Visible(a.Skill.Slug), state); err != nil || !a.CredentialsDropped {
		return err
	}
	_, err := fmt.Fprintln(w, "The stored secrets were dropped: the skill visits another host now. Give them again.")
	return err
}

func skillsCreateCommand() *cobra.Command {
	return &cobra.Command{
		Use: "create BODY", Short: "create a skill of a JSON object: itself, @ and a file, or - for the input",
		Long: "The object is the body of POST /v1/browser-skills: name, definition, policy, auth, and owner_attested, which must be true.\nKeep secrets out of the shell's history: read them from a file or the input.",
		Args: cobra.ExactArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: cli.Does(func(cmd *cobra.Command, args []string) error {
			body, err := readArgs(cmd.Context(), cmd.InOrStdin(), args[0])
			if err != nil {
				return cli.WrongUse(err)
			}
			c, err := newClient()
			if err != nil {
				return err
			}
			return callAndShow(cmd, c, http.MethodPost, skillKind.path, body, printSkill)
		}),
	}
}

func skillsUpdateCommand() *cobra.Command {
	var name, description, body *string
	var enable, disable *bool
	cmd := onOne(skillKind, "update", "change, pause or resume a skill", func(cmd *cobra.Command, c *Client, path string) error {
		patch := map[string]any{}
		if *body != "" {
			doc, err := readArgs(cmd.Context(), cmd.InOrStdin(), *body)
			if err != nil {
				return cli.WrongUse(fmt.Errorf("--patch: %w", err))
			}
			var members map[string]json.RawMessage
			if err := json.Unmarshal(doc, &members); err != nil {
				return cli.WrongUse(fmt.Errorf("--patch: %w", err))
			}
			for k, v := range members {
				patch[k] = v
			}
		}
		if cmd.Flags().Changed("name") {
			patch["name"] = *name
		}
		if cmd.Flags().Changed("description") {
			patch["description"] = *description
		}
		if *enable || *disable {
			patch["enabled"] = *enable
		}
		switch {
		case *enable && *disable:
			return cli.WrongUse(errors.New("give one of --enable and --disable"))
		case len(patch) == 0:
			return cli.WrongUse(errors.New("nothing to change: see --help"))
		}
		return callAndShow(cmd, c, http.MethodPatch, path, patch, printSkill)
	})
	name = cmd.Flags().String("name", "", "for people")
	description = cmd.Flags().String("description", "", "what the model reads about its tools")
	enable = cmd.Flags().Bool("enable", false, "offer its tools again")
	disable = cmd.Flags().Bool("disable", false, "offer its tools to no agent")
	body = cmd.Flags().String("patch", "", "other members, such as policy, auth or node_id, a JSON object: itself, @ and a file, or - for the input")
	return cmd
}

func skillsDryRunCommand() *cobra.Command {
	var params *string
	cmd := onOne(skillKind, "dry-run", "try a skill up to its commit step; nothing is submitted", func(cmd *cobra.Command, c *Client, path string) error {
		body := map[string]any{"params": map[string]any{}}
		if *params != "" {
			read, err := readArgs(cmd.Context(), cmd.InOrStdin(), *params)
			if err != nil {
				return cli.WrongUse(fmt.Errorf("--params: %w", err))
			}
			body["params"] = read
		}
		c.patience = 5 * time.Minute // the answer comes when the run has ended
		return callAndShow(cmd, c, http.MethodPost, path+"/dry-run", body, func(w io.Writer, a *struct {
			Run SkillRunView `json:"run"`
		}) error {
			return printSkillRun(w, &a.Run)
		})
	})
	params = cmd.Flags().String("params", "", "a value for each parameter, a JSON object: itself, @ and a file, or - for the input")
	return cmd
}

func printSkillRun(w io.Writer, r *SkillRunView) error {
	code := ""
	if r.Code != nil {
		code = "  " + cli.Visible(*r.Code)
	}
	fmt.Fprintf(w, "%s  %s  %s%s\n", cli.Visible(r.ID), cli.Visible(r.Mode), cli.Visible(r.Status), code)
	for _, s := range r.Steps {
		fmt.Fprintf(w, "  %-8s %s  %s\n", cli.Visible(s.Status), cli.Visible(s.ID), cli.Visible(s.Label))
	}
	_, err := fmt.Fprintf(w, "screenshots: svc skills show %s\n", cli.ShortID(r.ID))
	return err
}

func skillsRunsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "runs [SKILL]", Short: "list runs of a skill, or of all, newest first", Args: cobra.MaximumNArgs(1), ValidArgsFunction: completes(skillKind, 1),
	}
	most := limitFlag(cmd, 25)
	agentRun := filledFlag(cmd, "agent-run", "", "those that this run of an agent made")
	if err := cmd.RegisterFlagCompletionFunc("agent-run", completes(runKind, -1)); err != nil {
		panic(err) // the flag is defined a line above
	}
	cmd.RunE = cli.Does(func(cmd *cobra.Command, args []string) error {
		if err := checkLimit(*most); err != nil {
			return err
		}
		if len(args) == 1 && *agentRun != "" {
			return cli.WrongUse(errors.New("give a skill or --agent-run, not both"))
		}
		c, err := newClient()
		if err != nil {
			return err
		}
		path, query := skillRunKind.path, url.Values{}
		if len(args) == 1 {
			found, err := c.find(cmd.Context(), skillKind, args[0])
			if err != nil {
				return err
			}
			path = skillKind.at(found) + "/runs"
		}
		if *agentRun != "" {
			found, err := c.find(cmd.Context(), runKind, *agentRun)
			if err != nil {
				return err
			}
			query.Set("agent_run_id", found)
		}
		items, next, err := c.Pages(cmd.Context(), path, query, *most)
		if err != nil {
			return err
		}
		return cli.PrintList(cmd, items, next, *most, "runs", "RUN\tMODE\tSTATUS\tCODE\tAGENT RUN\tCREATED", func(w io.Writer, r *SkillRunView) {
			code, of := "", ""
			if r.Code != nil {
				code = *r.Code
			}
			if r.AgentRunID != nil {
				of = cli.ShortID(*r.AgentRunID)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", cli.ShortID(r.ID), cli.Visible(r.Mode), cli.Visible(r.Status), cli.Dash(cli.Visible(code)), cli.Dash(of), r.CreatedAt.Format(time.RFC3339))
		})
	})
	return cmd
}

func skillsShowCommand() *cobra.Command {
	var into *string
	cmd := onOne(skillRunKind, "show", "write what a run did, with its screenshots, as one HTML page", func(cmd *cobra.Command, c *Client, path string) (err error) {
		var raw json.RawMessage
		if err := c.Call(cmd.Context(), http.MethodGet, path, nil, &raw); err != nil {
			return err
		}
		if cli.WantsJSON(cmd) {
			return cli.PrintJSON(cmd.OutOrStdout(), raw)
		}
		var got struct {
			Run SkillRunView `json:"run"`
		}
		if err := json.Unmarshal(raw, &got); err != nil {
			return err
		}
		page, err := skillPage(cmd.Context(), c, &got.Run)
		if err != nil {
			return err
		}
		if *into == "-" {
			_, err := cmd.OutOrStdout().Write(page)
			return err
		}
		name := *into
		if name == "" {
			name = "skill-run-" + strings.Map(plainLetters, cli.ShortID(got.Run.ID)) + ".html"
		}
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("--out: %w", err)
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		if _, err := f.Write(page); err != nil {
			return err
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), cli.Visible(name))
		return err
	})
	into = cmd.Flags().String("out", "", "the file, which must not exist; - for the output (default skill-run-<id>.html)")
	return cmd
}

// plainLetters keeps what a file name may hold.
func plainLetters(r rune) rune {
	if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' {
		return r
	}
	return -1
}

func skillsGrantCommand() *cobra.Command {
	var agent, node *string
	var ops *[]string
	cmd := onOne(skillKind, "grant", "allow a skill to an agent, which publishes it, or to the agents of an org node", func(cmd *cobra.Command, c *Client, path string) error {
		if (*agent == "") == (*node == "") {
			return cli.WrongUse(errors.New("give --agent or --node, one of them"))
		}
		body := map[string]any{"ops": *ops}
		if *node != "" {
			body["node_id"] = *node
		} else {
			found, err := c.find(cmd.Context(), agentKind, *agent)
			if err != nil {
				return err
			}
			body["agent_id"] = found
		}
		return callAndShow(cmd, c, http.MethodPost, path+"/grants", body, func(w io.Writer, made *struct {
			Items []struct{ ID, Op string } `json:"items"`
		}) error {
			for _, g := range made.Items {
				if _, err := fmt.Fprintf(w, "%s  %s\n", cli.Visible(g.ID), cli.Visible(g.Op)); err != nil {
					return err
				}
			}
			return nil
		})
	})
	agent = filledFlag(cmd, "agent", "", "the agent, by its slug or id")
	if err := cmd.RegisterFlagCompletionFunc("agent", completes(agentKind, -1)); err != nil {
		panic(err) // the flag is defined a line above
	}
	node = filledFlag(cmd, "node", "", "the org node, by its full id")
	ops = cmd.Flags().StringSlice("op", []string{"run", "dry_run"}, "what is allowed: run, dry_run, or * for both")
	return cmd
}

func skillsRevokeCommand() *cobra.Command {
	return asking(&cobra.Command{
		Use: "revoke SKILL GRANT", Short: "remove a grant of a skill; calls are refused from then on", Args: cobra.ExactArgs(2), ValidArgsFunction: completes(skillKind, 1),
		RunE: cli.Does(func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			found, err := c.find(cmd.Context(), skillKind, args[0])
			if err != nil {
				return err
			}
			grants := kind{what: "grant", path: skillKind.at(found) + "/grants"}
			grant, err := c.find(cmd.Context(), grants, args[1])
			if err != nil {
				return err
			}
			return remove(cmd, c, grants.at(grant))
		}),
	})
}
