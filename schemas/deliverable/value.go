package deliverable

import (
	"regexp"
	"strconv"
	"strings"
	"time"
)

// value is a typed cell: nil data is an empty cell, else it is a string, float64, bool or
// time.Time. format is the number format of numbers and times.
type value struct {
	data   any
	format string
}

var (
	numberRE  = regexp.MustCompile(`^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?$`)
	groupedRE = regexp.MustCompile(`^-?[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?$`)
	// commaRE is a number with a decimal comma: in its column a comma separates no thousands.
	commaRE = regexp.MustCompile(`^[^0-9]*[0-9.]*,(?:[0-9]{1,2}|[0-9]{4,})[^0-9]*$|\.[0-9]{3},`)
)

const (
	// maxDigits is how many digits a number of a spreadsheet keeps: longer ones are identifiers.
	maxDigits  = 15
	dateForm   = "yyyy-mm-dd"
	momentForm = "yyyy-mm-dd hh:mm:ss"
)

// earliest is the first day that all spreadsheets agree about.
var earliest = time.Date(1900, 3, 1, 0, 0, 0, 0, time.UTC)

// readValue returns the value of a cell. Only what is unambiguous has a type: comma says that the
// column has decimal commas. Everything else is text, above all what looks like a formula.
func readValue(s string, comma bool) value {
	s = strings.TrimSpace(s)
	if s == "" {
		return value{}
	}
	if len(s) <= 32 {
		switch {
		case strings.EqualFold(s, "true"):
			return value{data: true}
		case strings.EqualFold(s, "false"):
			return value{data: false}
		}
		if v, ok := readTime(s); ok {
			return v
		}
		if v, ok := readNumber(s, comma); ok {
			return v
		}
	}
	return value{data: s}
}

func readTime(s string) (value, bool) {
	for _, layout := range []string{"2006-01-02", "2006-01-02 15:04", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02T15:04:05", "2006-01-02T15:04:05Z"} {
		if len(s) != len(layout) {
			continue
		}
		if t, err := time.Parse(layout, s); err == nil && !t.Before(earliest) {
			form := momentForm
			if layout == "2006-01-02" {
				form = dateForm
			}
			return value{t, form}, true
		}
	}
	return value{}, false
}

func readNumber(s string, comma bool) (value, bool) {
	sign := ""
	if rest, ok := strings.CutPrefix(s, "-"); ok {
		sign, s = "-", rest
	}
	currency, percent, behind := "", false, false
	for _, c := range []string{"$", "€", "£", "¥"} {
		if rest, ok := strings.CutPrefix(s, c); ok {
			currency, s = c, strings.TrimLeft(rest, " \u00a0")
			break
		}
		if rest, ok := strings.CutSuffix(s, c); ok {
			currency, behind, s = c, true, strings.TrimRight(rest, " \u00a0")
			break
		}
	}
	if currency == "" {
		if rest, ok := strings.CutSuffix(s, "%"); ok {
			percent, s = true, strings.TrimRight(rest, " \u00a0")
		}
	}
	if strings.HasPrefix(s, "-") { // one sign, in front
		return value{}, false
	}
	grouped := groupedRE.MatchString(s)
	if !grouped && !numberRE.MatchString(s) || grouped && comma {
		return value{}, false
	}
	whole, decimals, _ := strings.Cut(strings.ReplaceAll(s, ",", ""), ".")
	if len(whole)+len(decimals) > maxDigits {
		return value{}, false
	}
	digits := sign + whole
	if decimals != "" {
		digits += "." + decimals
	}
	if percent { // moved as text, so that 0.1% stays exact
		digits += "e-2"
	}
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil {
		return value{}, false
	}
	form := "0"
	if grouped || currency != "" {
		form = "#,##0"
	}
	if decimals != "" {
		form += "." + strings.Repeat("0", len(decimals))
	}
	switch {
	case percent:
		form += "%"
	case behind:
		form += `" ` + currency + `"`
	case currency != "":
		form = `"` + currency + `"` + form
	case form == "0":
		form = ""
	}
	return value{n, form}, true
}

// values returns a table's cells below the header, typed, and the header's texts.
func (b *block) values() (header []string, rows [][]value) {
	header = make([]string, len(b.rows[0]))
	for i, src := range b.rows[0] {
		header[i] = plainText(src)
	}
	comma := make([]bool, len(header))
	for _, row := range b.rows[1:] {
		for i, src := range row {
			if !comma[i] && len(src) <= 32 && strings.Contains(src, ",") {
				comma[i] = commaRE.MatchString(plainText(src))
			}
		}
	}
	rows = make([][]value, 0, len(b.rows)-1)
	for _, row := range b.rows[1:] {
		out := make([]value, len(header))
		for i, src := range row {
			out[i] = readValue(plainText(src), comma[i])
		}
		rows = append(rows, out)
	}
	return header, rows
}
