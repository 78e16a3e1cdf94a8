package spec

import (
	"encoding/json"
	"testing"
	"time"
)

func TestResultJSON(t *testing.T) {
	tests := map[string]struct {
		result Result
		want   string
	}{
		"text": {
			Result{
				ID: "sb-1", Exec: "1-2-3", Status: StatusExited, ExitCode: 3, Reason: "it ended",
				Stdout: []byte("a\n"), Duration: 12345 * time.Microsecond, CPU: 4500 * time.Microsecond,
				PeakMemory: 123, IORead: 4096, IOWritten: -1, NetworkReceived: 70, NetworkSent: 80, Isolation: IsolationFull,
				Files:  &Files{Created: []string{"/tmp/a"}},
				Limits: LimitReport{Memory: Enforced, CPU: Enforced, Pids: Enforced, Disk: Unavailable, IO: Unavailable},
			},
			`{"id":"sb-1","exec":"1-2-3","status":"exited","exit_code":3,"signal":"","reason":"it ended",` +
				`"stdout_truncated":false,"stderr_truncated":false,"stdout_omitted_bytes":0,"stderr_omitted_bytes":0,"peak_memory_bytes":123,"io_read_bytes":4096,"io_written_bytes":-1,"network_received_bytes":70,"network_sent_bytes":80,"violations":[],"files":{"created":["/tmp/a"],"modified":[],"deleted":[]},"isolation":"full",` +
				`"limits":{"memory":"enforced","cpu":"enforced","pids":"enforced","disk":"unavailable","io":"unavailable"},` +
				`"stdout":"a\n","stderr":"","duration_ms":12.35,"cpu_ms":4.5}`,
		},
		"bytes": {
			Result{Stdout: []byte{0xff}, Stderr: []byte{0xfe, 0xfe}},
			`{"id":"","status":"","exit_code":0,"signal":"","reason":"",` +
				`"stdout_truncated":false,"stderr_truncated":false,"stdout_omitted_bytes":0,"stderr_omitted_bytes":0,"peak_memory_bytes":0,"io_read_bytes":0,"io_written_bytes":0,"network_received_bytes":0,"network_sent_bytes":0,"violations":[],"files":null,"isolation":"",` +
				`"limits":{},` +
				`"stdout_base64":"/w==","stderr_base64":"/v4=","duration_ms":0,"cpu_ms":0}`,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := json.Marshal(test.result)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}
