package read

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// builtinFormats are the number formats that a workbook refers to by number only.
var builtinFormats = map[int]string{
	1: "0", 2: "0.00", 3: "#,##0", 4: "#,##0.00", 9: "0%", 10: "0.00%", 11: "0.00E+00", 12: "# ?/?", 13: "# ??/??",
	14: "yyyy-mm-dd", 15: "d-mmm-yy", 16: "d-mmm", 17: "mmm-yy", 18: "h:mm AM/PM", 19: "h:mm:ss AM/PM", 20: "h:mm", 21: "h:mm:ss", 22: "yyyy-mm-dd h:mm",
	37: "#,##0 ;(#,##0)", 38: "#,##0 ;(#,##0)", 39: "#,##0.00;(#,##0.00)", 40: "#,##0.00;(#,##0.00)",
	45: "mm:ss", 46: "[h]:mm:ss", 47: "mm:ss.0", 48: "0.0E+0", 49: "@",
}

// piece is a part of a number format: text as it is, or letters and digits that stand for a value.
type piece struct {
	text    string
	literal bool
}

// section is a number format for positive or negative numbers, or zero.
type section struct {
	pieces  []piece
	date    bool
	clock12 bool
	elapsed bool
	percent int
	whole   int // least digits before the point
	places  int // digits after the point
	least   int // of them always shown
	groups  bool
	scale   int // commas at the end: thousands
	science bool
	general bool
}

// numberFormat shows numbers as a format of a workbook does. Fractions are shown as decimals.
type numberFormat struct{ sections []section }

// longestFormat limits the code of a format; Excel allows 255 characters.
const longestFormat = 1000

func parseFormat(code string) *numberFormat {
	if len(code) > longestFormat {
		code = ""
	}
	f := &numberFormat{}
	for _, s := range sections(code) {
		f.sections = append(f.sections, parseSection(s))
	}
	return f
}

// sections cuts a code at its semicolons.
func sections(code string) []string {
	var out []string
	from, quoted := 0, false
	for i := 0; i < len(code); i++ {
		switch code[i] {
		case '"':
			quoted = !quoted
		case '\\':
			i++
		case ';':
			if !quoted {
				out = append(out, code[from:i])
				from = i + 1
			}
		}
	}
	return append(out, code[from:])
}

func parseSection(code string) section {
	var s section
	put := func(text string, literal bool) {
		if n := len(s.pieces); n > 0 && s.pieces[n-1].literal && literal {
			s.pieces[n-1].text += text
			return
		}
		s.pieces = append(s.pieces, piece{text, literal})
	}
	trimmed := strings.ToLower(strings.TrimSpace(code))
	if trimmed == "" || trimmed == "general" || trimmed == "@" {
		s.general = true
		return s
	}
	number := ""
	for i := 0; i < len(code); {
		c := code[i]
		switch {
		case c == '"':
			end := strings.IndexByte(code[i+1:], '"')
			if end < 0 {
				end = len(code) - i - 1
			}
			put(code[i+1:i+1+end], true)
			i += min(end+2, len(code)-i)
		case c == '\\' && i+1 < len(code):
			_, n := utf8.DecodeRuneInString(code[i+1:])
			put(code[i+1:i+1+n], true)
			i += 1 + n
		case c == '_' && i+1 < len(code): // a gap as wide as the next character
			_, n := utf8.DecodeRuneInString(code[i+1:])
			put(" ", true)
			i += 1 + n
		case c == '*' && i+1 < len(code): // what fills the cell
			_, n := utf8.DecodeRuneInString(code[i+1:])
			i += 1 + n
		case c == '[':
			end := strings.IndexByte(code[i:], ']')
			if end < 0 {
				i = len(code)
				break
			}
			inside := code[i+1 : i+end]
			switch lower := strings.ToLower(inside); {
			case strings.Trim(lower, "h") == "" && lower != "", strings.Trim(lower, "m") == "" && lower != "", strings.Trim(lower, "s") == "" && lower != "":
				s.date, s.elapsed = true, true
				put("["+lower[:1]+"]", false)
			case strings.HasPrefix(inside, "$"):
				sign, _, _ := strings.Cut(inside[1:], "-")
				put(sign, true)
			}
			i += end + 1
		case strings.IndexByte("yYmMdDhHsSeEgG", c) >= 0 && !(number != "" && (c == 'E' || c == 'e') && i+1 < len(code) && (code[i+1] == '+' || code[i+1] == '-')):
			if len(code) >= i+7 && strings.EqualFold(code[i:i+7], "general") {
				s.general = true
				put("0", false)
				i += 7
				break
			}
			n := i
			for n < len(code) && code[n]|0x20 == c|0x20 {
				n++
			}
			put(strings.ToLower(code[i:n]), false)
			if c|0x20 != 'g' {
				s.date = true
			}
			i = n
		case len(code) >= i+5 && strings.EqualFold(code[i:i+5], "AM/PM"):
			s.clock12 = true
			put("am/pm", false)
			i += 5
		case len(code) >= i+3 && strings.EqualFold(code[i:i+3], "A/P"):
			s.clock12 = true
			put("am/pm", false)
			i += 3
		case s.date && (c == '.' || c == ',') && i+1 < len(code) && code[i+1] == '0': // parts of a second
			n := i + 1
			for n < len(code) && code[n] == '0' {
				n++
			}
			put(code[i:n], false)
			i = n
		case strings.IndexByte("0#?.,", c) >= 0 && !s.date:
			n := i
			for n < len(code) && strings.IndexByte("0#?.,", code[n]) >= 0 {
				n++
			}
			run := code[i:n]
			if number == "" {
				number = run
				put("0", false)
				before, after, has := strings.Cut(run, ".")
				for strings.HasSuffix(before, ",") && !has {
					before = before[:len(before)-1]
					s.scale++
				}
				for strings.HasSuffix(after, ",") {
					after = after[:len(after)-1]
					s.scale++
				}
				s.groups = strings.Contains(before, ",")
				s.whole = strings.Count(before, "0")
				s.places = min(len(strings.ReplaceAll(after, ",", "")), 30)
				s.least = min(strings.Count(after, "0"), 30)
			} else if strings.Contains(strings.Join(textsOf(s.pieces), ""), "/") {
				// the denominator of a fraction: the value is shown as a decimal
				s.general = true
			}
			i = n
		case (c == 'E' || c == 'e') && number != "" && i+1 < len(code):
			s.science = true
			i += 2
			for i < len(code) && (code[i] == '0' || code[i] == '#') {
				i++
			}
		case c == '%':
			s.percent++
			put("%", true)
			i++
		case c == '@':
			s.general = true
			i++
		default:
			_, n := utf8.DecodeRuneInString(code[i:])
			put(code[i:i+n], true)
			i += n
		}
	}
	return s
}

func textsOf(pieces []piece) []string {
	var out []string
	for _, p := range pieces {
		out = append(out, p.text)
	}
	return out
}

// show writes a number. since is the first day of the workbook's dates, in days after that of 1900.
func (f *numberFormat) show(n, since float64) string {
	s := f.sections[0]
	switch {
	case n < 0 && len(f.sections) > 1:
		s = f.sections[1]
		n = -n
	case n == 0 && len(f.sections) > 2:
		s = f.sections[2]
	}
	var out string
	switch {
	case s.general:
		return general(n)
	case s.date:
		out = s.showDate(n, since)
	default:
		out = s.showNumber(n)
	}
	return strings.TrimSpace(out)
}

func (s section) showNumber(n float64) string {
	for range min(s.percent, 3) {
		n *= 100
	}
	for range min(s.scale, 5) {
		n /= 1000
	}
	var digits string
	if s.science {
		digits = strconv.FormatFloat(n, 'E', s.places, 64)
	} else {
		digits = strconv.FormatFloat(round(n, s.places), 'f', s.places, 64)
		if s.places > s.least {
			cut := s.places - s.least
			for cut > 0 && strings.HasSuffix(digits, "0") {
				digits = digits[:len(digits)-1]
				cut--
			}
			digits = strings.TrimSuffix(digits, ".")
		}
		digits = s.group(digits)
	}
	var b strings.Builder
	shown := false
	negative := strings.HasPrefix(digits, "-")
	if negative {
		digits = digits[1:]
		if strings.Trim(digits, "0.,") != "" {
			b.WriteByte('-')
		}
	}
	for _, p := range s.pieces {
		switch {
		case p.literal:
			b.WriteString(p.text)
		case !shown:
			shown = true
			b.WriteString(digits)
		}
	}
	return b.String()
}

// round rounds half away from zero, as people do, where the binary value is just below.
func round(n float64, places int) float64 {
	if places > 12 || math.Abs(n) > 1e15 {
		return n
	}
	p := math.Pow10(places)
	r := math.Round(n*p*(1+1e-15)) / p
	if math.IsInf(r, 0) || math.IsNaN(r) {
		return n
	}
	return r
}

func (s section) group(digits string) string {
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	before, after, point := strings.Cut(digits, ".")
	if s.whole == 0 && before == "0" && point && after != "" {
		before = "" // ".5"
	}
	for len(before) < s.whole && len(before) < 30 {
		before = "0" + before
	}
	if s.groups {
		var b strings.Builder
		for i := range len(before) {
			if i > 0 && (len(before)-i)%3 == 0 {
				b.WriteByte(',')
			}
			b.WriteByte(before[i])
		}
		before = b.String()
	}
	if point {
		return sign + before + "." + after
	}
	return sign + before
}

// general writes a number as cells without a format do.
func general(n float64) string {
	if n == 0 {
		return "0"
	}
	if size := math.Abs(n); size >= 1e15 || size < 1e-9 {
		return strings.Replace(strconv.FormatFloat(n, 'G', 6, 64), "E+0", "E+", 1)
	}
	short := strconv.FormatFloat(n, 'g', 15, 64) // without the noise of binary fractions
	if r, err := strconv.ParseFloat(short, 64); err == nil {
		n = r
	}
	return strconv.FormatFloat(n, 'f', -1, 64)
}

// firstDay is day 0 of the dates of a workbook. Its day 60 never was, so that days before it
// are off by one.
var firstDay = time.Date(1899, 12, 30, 0, 0, 0, 0, time.UTC)

func (s section) showDate(n, since float64) string {
	days := n + since
	if days < 0 || days > 2958466 { // after the year 9999
		return general(n)
	}
	if days < 60 && since == 0 && days >= 1 {
		days++
	}
	smallest := time.Second
	for _, p := range s.pieces {
		if !p.literal && (p.text[0] == '.' || p.text[0] == ',') {
			smallest = time.Second
			for range min(len(p.text)-1, 3) {
				smallest /= 10
			}
		}
	}
	whole := math.Floor(days)
	at := firstDay.AddDate(0, 0, int(whole)).Add((time.Duration(math.Round((days-whole)*86400*1000)) * time.Millisecond).Round(smallest))
	seconds := int64(math.Round((n) * 86400))
	var b strings.Builder
	for i, p := range s.pieces {
		if p.literal {
			b.WriteString(p.text)
			continue
		}
		switch k := len(p.text); p.text[0] {
		case '[':
			switch p.text[1] {
			case 'h':
				b.WriteString(strconv.FormatInt(seconds/3600, 10))
			case 'm':
				b.WriteString(strconv.FormatInt(seconds/60, 10))
			default:
				b.WriteString(strconv.FormatInt(seconds, 10))
			}
		case 'y', 'e':
			if k <= 2 && p.text[0] == 'y' {
				b.WriteString(at.Format("06"))
			} else {
				b.WriteString(at.Format("2006"))
			}
		case 'm':
			if s.minutes(i) {
				b.WriteString(pad(at.Minute(), k))
				break
			}
			switch k {
			case 1, 2:
				b.WriteString(pad(int(at.Month()), k))
			case 3:
				b.WriteString(at.Format("Jan"))
			case 5:
				b.WriteString(at.Format("Jan")[:1])
			default:
				b.WriteString(at.Format("January"))
			}
		case 'd':
			switch k {
			case 1, 2:
				b.WriteString(pad(at.Day(), k))
			case 3:
				b.WriteString(at.Format("Mon"))
			default:
				b.WriteString(at.Format("Monday"))
			}
		case 'h':
			hour := at.Hour()
			if s.clock12 {
				if hour %= 12; hour == 0 {
					hour = 12
				}
			}
			b.WriteString(pad(hour, k))
		case 's':
			b.WriteString(pad(at.Second(), k))
		case 'a':
			b.WriteString(at.Format("PM"))
		case '.', ',':
			ms := pad(at.Nanosecond()/1e6, 3)
			b.WriteString(p.text[:1] + ms[:min(3, k-1)])
		}
	}
	return b.String()
}

// minutes reports whether an m stands for minutes: after hours or before seconds.
func (s section) minutes(at int) bool {
	for i := at - 1; i >= 0; i-- {
		if p := s.pieces[i]; !p.literal {
			if p.text[0] == 'h' || p.text == "[h]" {
				return true
			}
			break
		}
	}
	for _, p := range s.pieces[at+1:] {
		if !p.literal {
			return p.text[0] == 's' || p.text == "[s]"
		}
	}
	return false
}

func pad(n, digits int) string {
	s := strconv.Itoa(n)
	for len(s) < digits && len(s) < 4 {
		s = "0" + s
	}
	return s
}
