{{- define "nereid.name" -}}
{{- contains "nereid" .Release.Name | ternary .Release.Name (printf "%s-nereid" .Release.Name) | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "nereid.selector" -}}
app.kubernetes.io/name: nereid
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "nereid.labels" -}}
{{ include "nereid.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* The Pods that answer clients. */ -}}
{{- define "nereid.servers" -}}
{{ include "nereid.selector" . }}
app.kubernetes.io/component: {{ eq .Values.mode "rayservice" | ternary "worker" "server" }}
{{- end }}

{{- define "nereid.exitTimeout" -}}
{{ .Values.settings.exit_timeout_secs | default 30 }}
{{- end }}

{{- /* What `serve deploy` and `nereid-serve` read. */ -}}
{{- define "nereid.serveConfig" -}}
{{- $args := dict
    "model_repository" (.Values.models.repository | default "/srv/models")
    "http_address" "0.0.0.0"
    "grpc_address" "0.0.0.0"
    "metrics_address" "0.0.0.0" }}
{{- $application := dict "name" "nereid" "import_path" "nereid:build" "route_prefix" nil }}
{{- if eq .Values.mode "rayservice" }}
{{- $_ := set $args "channel_address" "node" }}
{{- $_ := set $application "external_scaler_enabled" true }}
{{- end }}
{{- if .Values.clientTokens.secret }}
{{- $_ := set $args "auth_tokens_file" "/etc/nereid/tokens/tokens" }}
{{- end }}
{{- $_ := set $application "args" (merge $args .Values.settings) }}
{{- dict "proxy_location" "Disabled" "applications" (list $application) | toYaml }}
{{- end }}

{{- define "nereid.account" -}}
{{- if .Values.serviceAccount -}}
serviceAccountName: {{ .Values.serviceAccount }}
{{- else -}}
automountServiceAccountToken: false
{{- end }}
{{- end }}

{{- /* A Pod without its containers and account. */ -}}
{{- define "nereid.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- range . }}{{ printf "\n- name: %s" . }}{{- end }}
{{- end }}
# preStop, then the server's --exit-timeout-secs, and more for the rest.
terminationGracePeriodSeconds: {{ add 50 (include "nereid.exitTimeout" .) }}
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 1000
  fsGroup: 1000
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
volumes:
{{- if not .Values.models.repository }}
  - name: models
    persistentVolumeClaim: {claimName: {{ .Values.models.claim }}, readOnly: true}
{{- end }}
{{- with .Values.clientTokens.secret }}
  - name: tokens
    secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
  - name: tmp
    emptyDir: {}
  - name: home
    emptyDir: {}
{{- end }}

{{- /* A container without its resources and probes. */ -}}
{{- define "nereid.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- with .Values.envFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  - {name: serve, containerPort: 8000}
  - {name: grpc, containerPort: 8001}
  - {name: http-metrics, containerPort: 8002}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
# The Service forgets a Pod before its processes are told to end.
lifecycle:
  preStop: {exec: {command: [sleep, "5"]}}
{{- end }}

{{- define "nereid.mounts" -}}
{{- if not .Values.models.repository }}
- {name: models, mountPath: /srv/models, readOnly: true}
{{- end }}
{{- if .Values.clientTokens.secret }}
- {name: tokens, mountPath: /etc/nereid/tokens, readOnly: true}
{{- end }}
- {name: tmp, mountPath: /tmp}
- {name: home, mountPath: /home/nereid}
{{- end }}

{{- define "nereid.readiness" -}}
readinessProbe:
  httpGet: {path: /-/healthz, port: serve}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end }}

{{- define "nereid.apart" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- include "nereid.servers" . | nindent 12 }}
{{- end }}

{{- /* Fields by which a Pod finds its node. */ -}}
{{- define "nereid.placement" -}}
{{- with .group.nodeSelector | default .root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .group.tolerations | default .root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* cluster/ray.env; KubeRay sets the rest. */ -}}
{{- define "nereid.rayEnvironment" -}}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
- {name: RAY_worker_niceness, value: "0"}
- {name: RAY_health_check_period_ms, value: "1000"}
- {name: RAY_health_check_timeout_ms, value: "2000"}
- {name: RAY_health_check_failure_threshold, value: "5"}
- {name: RAY_raylet_start_wait_time_s, value: "60"}
- {name: RAY_gcs_server_port_wait_time_s, value: "120"}
- {name: RAY_agent_register_timeout_ms, value: "300000"}
- {name: RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH, value: "nereid.controller:prepare"}
- {name: RAY_gcs_rpc_server_reconnect_timeout_s, value: "600"}
# At SIGTERM Ray starts what runs here on other Pods.
- {name: RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S, value: {{ add 30 (include "nereid.exitTimeout" .) | quote }}}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end }}
