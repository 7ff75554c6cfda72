"use strict";
// Curves as files: the samples with every digit, or the charts as one picture.

const OWN_COLUMNS = ["run", "time", "seconds", "step", "samples", "undone", "workers", "steps_per_second", "samples_per_second"];

function offerFile(name, type, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], {type}));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function fileName(curves, ending) {
  const runs = curves.runs().map((series) => series.story.head.run_id || "run");
  return `edriver-${runs.length > 3 ? `${runs.length}-runs` : runs.join("-").replace(/[^\w.-]/g, "_")}.${ending}`;
}

// A cell as RFC 4180 has it.
function csvCell(value) {
  if (value === null || value === undefined) return "";
  const text = String(value);
  return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

function csvText(runs) {
  const names = [...new Set(runs.flatMap((series) => series.keys.filter((key) => !key.startsWith("own:")).map(nameOf)))];
  const lines = [[...OWN_COLUMNS, ...names].map(csvCell).join(",")];
  for (const series of runs) {
    for (const row of series.rows()) {
      const values = names.map((name) => (!(name in row.values) ? "" : row.values[name] === null ? "NaN" : row.values[name]));
      lines.push([...OWN_COLUMNS.map((column) => row[column]), ...values].map(csvCell).join(","));
    }
  }
  return `${lines.join("\r\n")}\r\n`;
}

// Which runs a picture of the charts shows, over what.
function pictureTitle(curves) {
  const runs = curves.runs().map((series) => series.label).join("; ");
  return `${runs} over ${AXES[curves.axis]}${curves.axis === "wall" ? `, ${zoneText()}` : ""}`;
}

const downloads = {
  csv(curves) {
    offerFile(fileName(curves, "csv"), "text/csv", csvText(curves.runs()));
  },

  json(curves) {
    const runs = curves.runs().map((series) => ({run: series.story.head.run_id || series.label, samples: series.rows().map(({run, ...row}) => row), rounds: [...series.story.rounds.values()], interruptions: series.story.interruptions}));
    offerFile(fileName(curves, "json"), "application/json", JSON.stringify({runs}, null, 1));
  },

  // The charts below one another, as they are on the page, each with its legend.
  async png(curves) {
    const colour = colours();
    const [width, head, legend, times] = [Math.max(...curves.plots.map((plot) => plot.at.clientWidth), 300), 30, 24, 2];
    const canvas = document.createElement("canvas");
    canvas.width = times * width;
    canvas.height = times * (head + curves.plots.length * (legend + CURVE_HEIGHT));
    const pen = canvas.getContext("2d");
    pen.scale(times, times);
    pen.fillStyle = colour.card;
    pen.fillRect(0, 0, canvas.width, canvas.height);
    const write = (text, x, y, tint, weight = "") => {
      pen.fillStyle = tint;
      pen.font = `${weight} 13px system-ui, sans-serif`;
      pen.fillText(text, x, y);
      return x + pen.measureText(text).width;
    };
    write(pictureTitle(curves), 10, 20, colour.ink, "600");
    let y = head;
    for (const plot of curves.plots) {
      let x = 10;
      for (const {series, key, style} of curves.curvesOf(plot.keys)) {
        pen.fillStyle = style.color;
        pen.fillRect(x, y + 9, 16, 3);
        const words = [...(curves.single ? [] : [series.label]), nameOf(key)];
        x = write(words.join(" · "), x + 22, y + 15, colour.ink) + 18;
      }
      const image = new Image();
      image.src = await Plotly.toImage(plot.at, {format: "png", width: plot.at.clientWidth, height: CURVE_HEIGHT, scale: times});
      await image.decode();
      pen.drawImage(image, 0, y + legend, plot.at.clientWidth, CURVE_HEIGHT);
      y += legend + CURVE_HEIGHT;
    }
    canvas.toBlob((blob) => offerFile(fileName(curves, "png"), "image/png", blob));
  },
};
