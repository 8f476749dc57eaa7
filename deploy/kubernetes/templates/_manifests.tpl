{{/* The objects of some files beside the templates, as {"items": [...]} in JSON; . has context, files. */}}
{{- define "pinfold.objects" -}}
{{- $namespace := .context.Release.Namespace -}}
{{- $labels := dict
  "app.kubernetes.io/name" .context.Chart.Name
  "app.kubernetes.io/instance" .context.Release.Name
  "app.kubernetes.io/version" .context.Chart.AppVersion
  "app.kubernetes.io/managed-by" .context.Release.Service
  "helm.sh/chart" (printf "%s-%s" .context.Chart.Name .context.Chart.Version) -}}
{{- $items := list -}}
{{- range $file := .files -}}
{{- $text := required (printf "%s is not in the chart" $file) ($.context.Files.Get $file) -}}
{{- $text = replace "system:serviceaccount:pinfold:" (printf "system:serviceaccount:%s:" $namespace) $text -}}
{{- range $part := regexSplit "(?m)^---$" $text -1 -}}
{{- $object := fromYaml $part -}}
{{- if $object.kind -}}
{{- $_ := set $object.metadata "labels" (merge $labels (default dict $object.metadata.labels)) -}}
{{- if has $object.kind (list "ServiceAccount" "DaemonSet") -}}
{{- $_ := set $object.metadata "namespace" $namespace -}}
{{- end -}}
{{- range $subject := $object.subjects -}}
{{- $_ := set $subject "namespace" $namespace -}}
{{- end -}}
{{- if eq $object.kind "CustomResourceDefinition" -}}
{{- /* Without its kind every object of it is gone: that is for somebody to say by name. */ -}}
{{- $_ := set $object.metadata "annotations" (merge (dict "helm.sh/resource-policy" "keep") (default dict $object.metadata.annotations)) -}}
{{- end -}}
{{- $items = append $items $object -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "items" $items | toJson -}}
{{- end -}}

{{/* The overlays that are wanted, as {"items": [...]} in JSON. */}}
{{- define "pinfold.overlays" -}}
{{- $wanted := list -}}
{{- if .Values.nodeLabels -}}{{- $wanted = append $wanted "node-labels" -}}{{- end -}}
{{- if .Values.nodeResourceTopology -}}{{- $wanted = append $wanted "node-resource-topology" -}}{{- end -}}
{{- if .Values.publishNode -}}{{- $wanted = append $wanted "publish-node" -}}{{- end -}}
{{- if .Values.startUpTaint -}}{{- $wanted = append $wanted "start-up-taint" -}}{{- end -}}
{{- if .Values.computeResources -}}{{- $wanted = append $wanted "compute-resources" -}}{{- end -}}
{{- dict "items" $wanted | toJson -}}
{{- end -}}

{{/* The agent's configuration: the base's, what the overlays set, what the values set. */}}
{{- define "pinfold.configuration" -}}
{{- $config := .Files.Get "base/config.yaml" | fromYaml -}}
{{- range $overlay := (include "pinfold.overlays" . | fromJson).items -}}
{{- $config = mergeOverwrite $config ($.Files.Get (printf "overlays/%s/config.yaml" $overlay) | fromYaml) -}}
{{- end -}}
{{- mergeOverwrite $config (deepCopy .Values.config) | toYaml -}}
{{- end -}}
