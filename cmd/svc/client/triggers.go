package client

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
)

// TriggerView is a trigger as the API shows it.
type TriggerView struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Kind   string `json:"kind"`
	Target struct {
		AgentID    string `json:"agent_id"`
		WorkflowID string `json:"workflow_id"`
	} `json:"target"`
	Enabled  bool `json:"enabled"`
	Schedule *struct {
		Cron     string `json:"cron"`
		Timezone string `json:"timezone"`
	} `json:"schedule"`
	HookURL     *string    `json:"hook_url"`
	Secret      string     `json:"secret"`
	LastFiredAt *time.Time `json:"last_fired_at"`
	NextFireAt  *time.Time `json:"next_fire_at"`
}

// when returns what fires a trigger.
func (t *TriggerView) when() string {
	switch {
	case t.Schedule != nil:
		return cli.Visible(t.Schedule.Cron) + " " + cli.Visible(t.Schedule.Timezone)
	case t.HookURL != nil:
		return cli.Visible(*t.HookURL)
	}
	return cli.Visible(t.Kind)
}

func triggersCommand() *cobra.Command {
	cmd := cli.Group("triggers", "hooks and schedules that start runs")
	cmd.Long = idHelp
	cmd.AddCommand(triggersListCommand(), triggersCreateCommand(), triggersGetCommand(),
		triggersEnableCommand("enable", "let a paused trigger go on", true),
		triggersEnableCommand("disable", "pause a trigger", false),
		triggersRemoveCommand(), triggersRotateCommand(), triggersFireCommand())
	return cmd
}

func triggersListCommand() *cobra.Command {
	return listCommand(triggerKind, "list triggers, newest first", "triggers", "TRIGGER\tNAME\tKIND\tENABLED\tNEXT\tLAST\tWHEN", func(w io.Writer, t *TriggerView) {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", cli.ShortID(t.ID), cli.Shorten(cli.Visible(t.Name), 40), cli.Visible(t.Kind), yesNo(t.Enabled), cli.Moment(t.NextFireAt), cli.Moment(t.LastFiredAt), t.when())
	})
}

func triggersCreateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create AGENT|--workflow WORKFLOW --name NAME [--cron EXPRESSION [--timezone ZONE]]",
		Short: "make a trigger for an agent or a workflow, by its slug or id: a schedule with --cron, else a hook",
		Long: "A hook's secret is shown once, with a call to try it.\n" +
			"--cron takes minute, hour, day of month, month and day of week, as in \"0 9 * * MON-FRI\".",
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: completes(agentKind, 1),
	}
	workflow := filledFlag(cmd, "workflow", "", "the workflow that it starts, in place of an agent")
	if err := cmd.RegisterFlagCompletionFunc("workflow", completes(workflowKind, -1)); err != nil {
		panic(err) // the flag is defined a line above
	}
	name := cmd.Flags().String("name", "", "for people")
	cron := cmd.Flags().String("cron", "", "the schedule, a cron expression")
	zone := cmd.Flags().String("timezone", "", "time zone of --cron, such as Europe/Berlin (default UTC)")
	input := cmd.Flags().String("input", "", "input of its runs, a JSON object: itself, @ and a file, or - for the input")
	paused := cmd.Flags().Bool("paused", false, "make it paused")
	cli.Required(cmd, "name")
	cmd.RunE = cli.Does(func(cmd *cobra.Command, args []string) error {
		if (len(args) == 1) == (*workflow != "") {
			return cli.WrongUse(errors.New("give an agent or --workflow, one of them"))
		}
		body := map[string]any{"name": *name, "kind": "hook", "enabled": !*paused}
		switch {
		case *cron != "":
			times := map[string]string{"cron": *cron}
			if *zone != "" {
				times["timezone"] = *zone
			}
			body["kind"], body["schedule"] = "schedule", times
		case *zone != "":
			return cli.WrongUse(errors.New("--timezone: belongs to --cron"))
		}
		if *input != "" {
			read, err := readArgs(cmd.Context(), cmd.InOrStdin(), *input)
			if err != nil {
				return cli.WrongUse(fmt.Errorf("--input: %w", err))
			}
			body["input"] = read
		}
		c, err := newClient()
		if err != nil {
			return err
		}
		target, text := "workflow_id", *workflow
		of := workflowKind
		if text == "" {
			target, text, of = "agent_id", args[0], agentKind
		}
		found, err := c.find(cmd.Context(), of, text)
		if err != nil {
			return err
		}
		body["target"] = map[string]string{target: found}
		return triggerOnce(cmd, c, "/v1/triggers", body)
	})
	return cmd
}

// triggerOnce makes or rotates a trigger and prints the values that are shown once.
func triggerOnce(cmd *cobra.Command, c *Client, path string, body any) error {
	return callAndShow(cmd, c, http.MethodPost, path, body, printTriggerOnce)
}

func printTriggerOnce(w io.Writer, t *TriggerView) error {
	fmt.Fprintf(w, "trigger  %s\n", cli.Visible(t.ID))
	if t.HookURL == nil {
		_, err := fmt.Fprintf(w, "next     %s\n", cli.Moment(t.NextFireAt))
		return err
	}
	fmt.Fprintf(w, "url      %s\nsecret   %s\n", cli.Visible(*t.HookURL), cli.Visible(t.Secret))
	_, err := fmt.Fprintf(w, "\nThe secret is not shown again. To try it:\n\n%s\n", hookCall(*t.HookURL, t.Secret))
	return err
}

// hookCall returns a signed call of a hook, to be pasted into a shell.
func hookCall(hook, secret string) string {
	return "BODY='{\"text\":\"Hello.\"}'\n" +
		"curl -sS -X POST " + quoted(hook) + " \\\n" +
		"  -H \"X-Svc-Signature-256: sha256=$(printf %s \"$BODY\" | openssl dgst -sha256 -hmac " + quoted(secret) + " | sed 's/^.* //')\" \\\n" +
		"  --data-binary \"$BODY\""
}

// quoted returns a text as a word for a shell.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func triggersGetCommand() *cobra.Command { return onOne(triggerKind, "get", "one trigger", show) }

func triggersEnableCommand(use, short string, on bool) *cobra.Command {
	return onOne(triggerKind, use, short, func(cmd *cobra.Command, c *Client, path string) error {
		return callAndShow(cmd, c, http.MethodPatch, path, map[string]bool{"enabled": on}, func(w io.Writer, t *TriggerView) error {
			state := "paused"
			if t.Enabled {
				state = "enabled"
			}
			if t.NextFireAt != nil {
				state += ", next " + cli.Moment(t.NextFireAt)
			}
			_, err := fmt.Fprintf(w, "%s  %s\n", cli.Visible(t.ID), state)
			return err
		})
	})
}

func triggersRemoveCommand() *cobra.Command {
	return asking(onOne(triggerKind, "rm", "remove a trigger; its runs stay", remove))
}

func triggersRotateCommand() *cobra.Command {
	return asking(onOne(triggerKind, "rotate", "give a hook another secret; the old one is refused at once", func(cmd *cobra.Command, c *Client, path string) error {
		if err := agreed(cmd, c, path, cmd.Short); err != nil {
			return err
		}
		return triggerOnce(cmd, c, path+"/rotate-secret", nil)
	}))
}

func triggersFireCommand() *cobra.Command {
	var input *string
	cmd := onOne(triggerKind, "fire", "start a run of a trigger now", func(cmd *cobra.Command, c *Client, path string) error {
		body := map[string]any{}
		if *input != "" {
			read, err := readArgs(cmd.Context(), cmd.InOrStdin(), *input)
			if err != nil {
				return cli.WrongUse(fmt.Errorf("--input: %w", err))
			}
			body["input"] = read
		}
		type started struct {
			RunID string `json:"run_id"`
		}
		return callAndShow(cmd, c, http.MethodPost, path+"/fire", body, func(w io.Writer, s *started) error {
			_, err := fmt.Fprintln(w, cli.Visible(s.RunID))
			return err
		})
	})
	input = cmd.Flags().String("input", "", "overrides the trigger's input, a JSON object: itself, @ and a file, or - for the input")
	return cmd
}
