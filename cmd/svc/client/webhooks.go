package client

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
)

// webhookView is a webhook endpoint as the API shows it.
type webhookView struct {
	ID          string   `json:"id"`
	URL         string   `json:"url"`
	Events      []string `json:"events"`
	Description string   `json:"description"`
	Enabled     bool     `json:"enabled"`
	Secret      string   `json:"secret"`
}

// deliveryView is a delivery as the API shows it.
type deliveryView struct {
	ID             string     `json:"id"`
	Type           string     `json:"type"`
	Status         string     `json:"status"`
	Attempts       int        `json:"attempts"`
	LastHTTPStatus *int       `json:"last_http_status"`
	LastError      *string    `json:"last_error"`
	NextAttemptAt  *time.Time `json:"next_attempt_at"`
	CreatedAt      time.Time  `json:"created_at"`
}

func webhooksCommand() *cobra.Command {
	cmd := cli.Group("webhooks", "webhook endpoints and their deliveries")
	cmd.Long = idHelp
	cmd.AddCommand(webhooksListCommand(), webhooksCreateCommand(), webhooksGetCommand(), webhooksUpdateCommand(),
		webhooksEnableCommand("enable", "send to an endpoint again", true),
		webhooksEnableCommand("disable", "send nothing to an endpoint; what is still to be sent fails", false),
		webhooksRemoveCommand(), webhooksRotateCommand(), webhooksTestCommand(),
		webhooksDeliveriesCommand(), webhooksRedeliverCommand(), webhooksRecoverCommand())
	return cmd
}

func webhooksListCommand() *cobra.Command {
	return listCommand(endpointKind, "list endpoints, newest first", "endpoints", "ENDPOINT\tENABLED\tEVENTS\tURL\tDESCRIPTION", func(w io.Writer, e *webhookView) {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", cli.ShortID(e.ID), yesNo(e.Enabled), cli.Visible(strings.Join(e.Events, ",")), cli.Shorten(cli.Visible(e.URL), 80), cli.Shorten(cli.Visible(e.Description), 40))
	})
}

// eventsFlag adds --events.
func eventsFlag(cmd *cobra.Command) *[]string {
	return cmd.Flags().StringSlice("events", nil, "event types, separated by commas, or *")
}

func webhooksCreateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "create URL", Short: "add an endpoint, for all events unless --events is given", Long: "The secret, which signs what is sent, is shown once.", Args: cobra.ExactArgs(1)}
	events := eventsFlag(cmd)
	description := cmd.Flags().String("description", "", "for people")
	cmd.RunE = cli.Does(func(cmd *cobra.Command, args []string) error {
		c, err := newClient()
		if err != nil {
			return err
		}
		body := map[string]any{"url": args[0], "events": []string{"*"}, "description": *description}
		if cmd.Flags().Changed("events") {
			body["events"] = *events
		}
		return webhookOnce(cmd, c, "/v1/webhooks", body)
	})
	return cmd
}

// webhookOnce makes or rotates an endpoint and prints the values that are shown once.
func webhookOnce(cmd *cobra.Command, c *Client, path string, body any) error {
	return callAndShow(cmd, c, http.MethodPost, path, body, func(w io.Writer, e *webhookView) error {
		_, err := fmt.Fprintf(w, "endpoint  %s\nurl       %s\nevents    %s\nsecret    %s   (shown once)\n",
			cli.Visible(e.ID), cli.Visible(e.URL), cli.Visible(strings.Join(e.Events, ",")), cli.Visible(e.Secret))
		return err
	})
}

func webhooksGetCommand() *cobra.Command {
	return onOne(endpointKind, "get", "one endpoint", show)
}

// patchWebhook changes an endpoint and shows it.
func patchWebhook(cmd *cobra.Command, c *Client, path string, body any) error {
	return callAndShow(cmd, c, http.MethodPatch, path, body, func(w io.Writer, e *webhookView) error {
		state := "disabled"
		if e.Enabled {
			state = "enabled"
		}
		_, err := fmt.Fprintf(w, "%s  %s  %s  %s\n", cli.Visible(e.ID), state, cli.Visible(strings.Join(e.Events, ",")), cli.Visible(e.URL))
		return err
	})
}

func webhooksUpdateCommand() *cobra.Command {
	var to, description *string
	var events *[]string
	cmd := onOne(endpointKind, "update", "change an endpoint", func(cmd *cobra.Command, c *Client, path string) error {
		body := map[string]any{}
		for name, value := range map[string]any{"url": *to, "events": *events, "description": *description} {
			if cmd.Flags().Changed(name) {
				body[name] = value
			}
		}
		return patchWebhook(cmd, c, path, body)
	})
	to = cmd.Flags().String("url", "", "its new URL; pending deliveries go there too")
	events = eventsFlag(cmd)
	description = cmd.Flags().String("description", "", "for people")
	cmd.MarkFlagsOneRequired("url", "events", "description")
	return cmd
}

func webhooksEnableCommand(use, short string, on bool) *cobra.Command {
	return onOne(endpointKind, use, short, func(cmd *cobra.Command, c *Client, path string) error {
		return patchWebhook(cmd, c, path, map[string]bool{"enabled": on})
	})
}

func webhooksRemoveCommand() *cobra.Command {
	return asking(onOne(endpointKind, "rm", "remove an endpoint, with its deliveries", remove))
}

func webhooksRotateCommand() *cobra.Command {
	return asking(onOne(endpointKind, "rotate", "give an endpoint another secret; from now on it signs everything", func(cmd *cobra.Command, c *Client, path string) error {
		if err := agreed(cmd, c, path, cmd.Short); err != nil {
			return err
		}
		return webhookOnce(cmd, c, path+"/rotate-secret", nil)
	}))
}

// sendAgain makes a call that sends an event, and prints the delivery's id.
func sendAgain(cmd *cobra.Command, c *Client, path string) error {
	type sent struct {
		DeliveryID string `json:"delivery_id"`
	}
	return callAndShow(cmd, c, http.MethodPost, path, nil, func(w io.Writer, s *sent) error {
		_, err := fmt.Fprintln(w, cli.Visible(s.DeliveryID))
		return err
	})
}

func webhooksTestCommand() *cobra.Command {
	return onOne(endpointKind, "test", "send an endpoint a webhook.test", func(cmd *cobra.Command, c *Client, path string) error {
		return sendAgain(cmd, c, path+"/test")
	})
}

func webhooksRedeliverCommand() *cobra.Command {
	return &cobra.Command{Use: "redeliver ID DELIVERY", Short: "send a delivery again", Args: cobra.ExactArgs(2), ValidArgsFunction: completes(endpointKind, 1), RunE: cli.Does(func(cmd *cobra.Command, args []string) error {
		c, err := newClient()
		if err != nil {
			return err
		}
		endpoint, err := c.find(cmd.Context(), endpointKind, args[0])
		if err != nil {
			return err
		}
		deliveries := kind{what: "delivery", path: endpointKind.at(endpoint) + "/deliveries"}
		found, err := c.find(cmd.Context(), deliveries, args[1])
		if err != nil {
			return err
		}
		return sendAgain(cmd, c, deliveries.at(found)+"/redeliver")
	})}
}

func webhooksRecoverCommand() *cobra.Command {
	var since *string
	cmd := onOne(endpointKind, "recover", "send again every delivery that failed since --since", func(cmd *cobra.Command, c *Client, path string) error {
		from, err := readSince(*since, time.Now())
		if err != nil {
			return cli.WrongUse(fmt.Errorf("--since: %w", err))
		}
		type recovered struct{ Deliveries int }
		return callAndShow(cmd, c, http.MethodPost, path+"/recover", map[string]time.Time{"since": from}, func(w io.Writer, r *recovered) error {
			_, err := fmt.Fprintf(w, "%d deliveries are sent again\n", r.Deliveries)
			return err
		})
	})
	cmd.Use += " --since TIME"
	since = cmd.Flags().String("since", "", "a time as 2026-01-02T15:04:05Z, or how long ago as 90m or 36h")
	cli.Required(cmd, "since")
	return cmd
}

// readSince reads a time, or a duration before now.
func readSince(text string, now time.Time) (time.Time, error) {
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago).UTC(), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, errors.New("must be a time as 2026-01-02T15:04:05Z, or how long ago as 90m or 36h")
	}
	return at.UTC(), nil
}

func webhooksDeliveriesCommand() *cobra.Command {
	var status, kind *string
	var most *int
	cmd := onOne(endpointKind, "deliveries", "list an endpoint's deliveries, newest first", func(cmd *cobra.Command, c *Client, path string) error {
		if err := checkLimit(*most); err != nil {
			return err
		}
		q := url.Values{}
		for name, value := range map[string]string{"status": *status, "type": *kind} {
			if value != "" {
				q.Set(name, value)
			}
		}
		items, next, err := c.Pages(cmd.Context(), path+"/deliveries", q, *most)
		if err != nil {
			return err
		}
		return cli.PrintList(cmd, items, next, *most, "deliveries", "DELIVERY\tTYPE\tSTATUS\tATTEMPTS\tHTTP\tNEXT\tCREATED\tERROR", func(w io.Writer, d *deliveryView) {
			code, why := "-", ""
			if d.LastHTTPStatus != nil {
				code = fmt.Sprint(*d.LastHTTPStatus)
			}
			if d.LastError != nil {
				why = cli.Shorten(cli.Visible(*d.LastError), 80)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%d/5\t%s\t%s\t%s\t%s\n", cli.ShortID(d.ID), cli.Visible(d.Type), cli.Visible(d.Status), d.Attempts, code, cli.Moment(d.NextAttemptAt), cli.Moment(&d.CreatedAt), cli.Dash(why))
		})
	})
	status = filledFlag(cmd, "status", "", "only deliveries of this status: pending, succeeded or failed")
	kind = filledFlag(cmd, "type", "", "only deliveries of this event type")
	most = limitFlag(cmd, 25)
	return cmd
}
